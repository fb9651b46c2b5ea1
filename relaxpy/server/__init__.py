"""The server of language models: HTTP around engines (`relaxpy.serve`), in the shapes that OpenAI and Anthropic use.

    relaxpy serve ./TinyLlama

`app.create_app` makes the application, `run.serve` runs it. The engines are processes of their own.
"""
