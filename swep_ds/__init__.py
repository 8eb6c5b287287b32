"""Question answering that holds up on text it never saw: SWEP (Lee et al., ACL 2021) on DeepSpeed."""

__version__ = "0.1.0"
