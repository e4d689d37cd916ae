"""A model behind the HTTP interface of OpenAI's completions."""
