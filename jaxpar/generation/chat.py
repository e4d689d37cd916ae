"""A conversation with a model: each answer continues all of it, by the template of the model's tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from jaxpar.config.errors import UserError
from jaxpar.data.chat.encoding import ChatEncoder
from jaxpar.data.chat.messages import ASSISTANT, Message, Unusable
from jaxpar.data.text import Text
from jaxpar.generation.generator import Generator
from jaxpar.generation.requests import Continuation
from jaxpar.generation.sampling import LIKELIEST, Sampling
from jaxpar.generation.text import Screen, Stop


class Answer(NamedTuple):
    """The model's answer to a message."""

    text: str
    continuation: Continuation


class Chat:
    """A conversation.

    Args:
        encoder: the template with its tokenizer.
        text: the same tokenizer for messages, and the tokens that end a document.
        system: the first message; None leaves it to the template.
        stops: texts that end an answer before them, besides the template's end of a turn.

    Raises:
        UserError: the template does not render an example, or `system` spells a special token.
    """

    def __init__(self, encoder: ChatEncoder, text: Text, *, system: str | None = None, stops: Sequence[str] = ()):
        self.messages: list[Message] = [] if system is None else [{"role": "system", "content": system}]
        self._encoder, self._text = encoder, text
        try:
            encoder.check(self.messages)
            end = encoder.end_of_turn()
        except Unusable as error:
            raise UserError(f"--chat: {error}") from None
        self._end_tokens, self._stops = (*text.stops, *end.tokens), (*stops, *end.texts)

    def answer(
        self,
        message: str,
        generator: Generator,
        tokens: int,
        sampling: Sampling = LIKELIEST,
        screen: Screen | None = None,
    ) -> Answer:
        """The model's answer to what the user says; both become part of the conversation.

        Args:
            message: the user's message.
            generator: the model.
            tokens: most tokens of the answer.
            sampling: how they are drawn.
            screen: prints the answer as it grows; None prints nothing.

        Raises:
            UserError: the template refuses the message, or it spells a special token.
        """
        messages: list[Message] = [*self.messages, {"role": "user", "content": message}]
        try:
            self._encoder.check(messages[-1:], len(messages))
            prompt = self._encoder.prompt(messages)
        except Unusable as error:
            raise UserError(f"--chat: {error}") from None
        stop = Stop(self._text.decode, self._stops)

        def on_token(_: int, token: int) -> bool:
            done = stop.add_token(token)
            if screen is not None:
                screen.show(stop.text if done else stop.certain)
            return done

        (continuation,) = generator.continued(
            [prompt], tokens, sampling=sampling, stop=self._end_tokens, on_token=on_token
        )
        if screen is not None:
            screen.show(stop.text)
            screen.end()
        said: Message = {"role": ASSISTANT, "content": stop.text.strip()}
        try:
            self._encoder.check([said], len(messages) + 1)
        except Unusable as error:
            raise UserError(f"--chat: {error}, so this answer does not become part of the conversation") from None
        self.messages = [*messages, said]
        return Answer(stop.text, continuation)
