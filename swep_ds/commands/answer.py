"""Answers a question about a text with a saved model.

    swep-ds answer runs/quickstart-swep-seed0/model --question "Who ...?" --text "..."
    swep-ds answer MODEL --question "Who ...?" --text_file article.txt --n_best 3

Prints the best answers, each with its probability among all spans of the text, and the text around it. The probability
of a generated answer is that of its tokens.
Exit codes: 0 done; 2 bad input (one line says what and how to fix it); anything else is a fault.
"""

from swep_ds.cli import Parser
from swep_ds.errors import InputError, printable
from swep_ds.files import path_of, read_text


def answer() -> None:
    parser = Parser(description=__doc__)
    parser.add_argument("model", help="Hugging Face folder or hub id of a question-answering model")
    parser.add_argument("--question", required=True)
    text = parser.add_mutually_exclusive_group(required=True)
    text.add_argument("--text")
    text.add_argument("--text_file", type=path_of("--text_file"))
    parser.add_argument("--n_best", type=int, default=1, help="answers (default: 1; a generative model has one)")
    arguments = parser.parse_args()
    if arguments.n_best < 1:
        raise InputError(f"--n_best {arguments.n_best}: must be at least 1")

    from swep_ds.evaluation.spans import Answer  # after the arguments: these imports take seconds
    from swep_ds.pipeline.saved import answer_question
    from swep_ds.ranks.group import process_group

    context = arguments.text
    if arguments.text_file:
        context = read_text(arguments.text_file, f"--text_file {arguments.text_file}")
    for option, value in (("--question", arguments.question), ("--text", context)):
        if any("\ud800" <= character <= "\udfff" for character in value):
            raise InputError(f"{option}: holds bytes that are no UTF-8 text: give it as UTF-8")
    with process_group():
        for best in answer_question(arguments.model, arguments.question, context, arguments.n_best):
            place = ""
            if isinstance(best, Answer):  # a generated answer has no place in the text
                place = f"    ...{context[max(0, best.start - 40) : best.end + 40]}...".replace("\n", " ")
            print(f"{best.probability:6.1%}  {printable(best.text + place)}")
