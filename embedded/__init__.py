"""How the language model that ships with relaxpy (`relaxpy.embedded`) is made: a Llama of four million parameters,
trained on one processor core with what every machine has, the sources and docstrings of Python's standard library and
of relaxpy's own dependencies.

    python -m embedded.corpus RUN                               sources → tokenizer and tokens, in the folder RUN
    python -m embedded.train_embedded RUN                       train at a constant rate; resumes where it ended
    python -m embedded.train_embedded RUN --finish 5000000      decay the rate over so many tokens more
    python -m embedded.export RUN                               the checkpoint and its card, into relaxpy/embedded
    python -m embedded.evaluate                                 bits per byte beside xz, and answers, of what ships

`sources` and `questions` say what is read, `tokenizer`, `decoder` and `optimizer` what is trained and how. Needs the
extra `torch`, and `tokenizers`. None of this is in the wheel.
"""
