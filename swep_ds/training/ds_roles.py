"""What fields of a ds_config are for, by name. Imports nothing: a table need not wait for DeepSpeed."""

# its throughput timer synchronises the GPU at every forward and step
QUIET = {"steps_per_print": 2**31, "wall_clock_breakdown": False, "timers": {"throughput": {"enabled": False}}}
# what DeepSpeed reports, which may change between two starts of a run
REPORTS = (*QUIET, "memory_breakdown", "dump_state", "log_level", "comms_logger")
REPORTS += ("tensorboard", "csv_monitor", "wandb", "comet")
BATCH_SPLIT = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
# how DeepSpeed spreads state and work, which may change too
SPREAD = ("zero_optimization", "zero_force_ds_cpu_optimizer", "zero_allow_untested_optimizer", "aio", *BATCH_SPLIT)
# blocks that the recipe decides, as a whole or in what affects results
BY_RECIPE = (*BATCH_SPLIT, "train_batch_size", "gradient_clipping", "bf16", "fp16", "torch_autocast")
