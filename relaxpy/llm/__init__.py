"""Language models as people use them: text in, text out.

    import relaxpy.llm

    model = relaxpy.llm.load("TinyLlama-1.1B-Chat-v1.0")
    for piece in model.generate("The capital of France is", max_tokens=20):
        print(piece, end="", flush=True)

`load` compiles the model at its first use (`relaxpy.models.loaded`). A `Generation` gives the text piece by piece, and
says afterwards why it ended and how fast it was. What lies below, pages and batches, is in `relaxpy.serve`.
"""

from relaxpy.llm.chat_template import ChatTemplate
from relaxpy.llm.detokenizer import Detokenizer
from relaxpy.llm.generation import Generation, Timings, Usage
from relaxpy.llm.language_model import LanguageModel, load
from relaxpy.llm.stop_strings import StopStrings
from relaxpy.llm.thoughts import Thoughts
from relaxpy.llm.tokenizer import Tokenizer

__all__ = [
    "ChatTemplate",
    "Detokenizer",
    "Generation",
    "LanguageModel",
    "StopStrings",
    "Thoughts",
    "Timings",
    "Tokenizer",
    "Usage",
    "load",
]


def __dir__() -> list[str]:
    return sorted(__all__)
