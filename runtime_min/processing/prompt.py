"""Instruction and state to token ids: cleaning, state codes, prompt formats, tokenizer files.

Source: openpi `models/tokenizer.py` (`PaligemmaTokenizer`) at 15a9616; LeRobot
`policies/pi05/processor_pi05.py` at 7427f31, which writes the same text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
from numpy.typing import NDArray

from policyc.runtime_min.errors import BundleError, ObservationError
from policyc.runtime_min.fields import parse_json
from policyc.runtime_min.processing.schema import Cleaning, Prompt, PromptFormat, TokenizerKind

STATE_BINS = 256
PADDING_ID = 0
MAXIMUM_TOKENIZER_BYTES = 256 * 2**20

Encode = Callable[[str], list[int]]

_BIN_EDGES = np.arange(STATE_BINS, dtype=np.float64) * (2.0 / STATE_BINS) - 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptEncoder:
    """A prompt description bound to its tokenizer; `encode` gives ids without the leading bos."""

    description: Prompt
    encode: Encode

    @classmethod
    def load(cls, description: Prompt, folder: Path) -> PromptEncoder:
        """Read the tokenizer file from the bundle's folder.

        Raises:
            BundleError: the file is missing, outside the folder, unreadable, or its bos id differs.
        """
        return cls(description=description, encode=load_tokenizer(description, folder))

    def tokens(
        self, prompt: str, state: NDArray[np.floating[Any]]
    ) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """Token ids [L] (padded with 0) and their mask [L].

        Args:
            prompt: the instruction; any text that UTF-8 can express, empty included.
            state: normalised state [W]; read by the state format only.

        Raises:
            ObservationError: the ids do not fit L, or the text holds lone surrogates. Nothing is
            ever
                cut: the end of the text holds the state and the action marker.
        """
        ids = self.ids(prompt, state)
        slots = self.description.slots
        if len(ids) > slots:
            raise ObservationError(
                f"prompt: {len(ids)} tokens with format '{self.description.format.value}', but the "
                f"policy has {slots} slots. Shorten the instruction by at least {len(ids) - slots} "
                "tokens, or compile with more prompt slots."
            )
        tokens = np.full(slots, PADDING_ID, np.int32)
        tokens[: len(ids)] = ids
        return tokens, np.arange(slots) < len(ids)

    def ids(self, prompt: str, state: NDArray[np.floating[Any]]) -> list[int]:
        """All ids of the prompt, bos first, neither cut nor padded."""
        text = self._clean(prompt)
        bos = self.description.bos_id
        match self.description.format:
            case PromptFormat.STATE:
                return [bos, *self.encode(f"Task: {text}, State: {state_codes(state)};\nAction: ")]
            case PromptFormat.PLAIN:
                return [bos, *self.encode(text), *self.encode("\n")]
            case PromptFormat.LINE:
                return [bos, *self.encode(text if text.endswith("\n") else f"{text}\n")]

    def _clean(self, prompt: str) -> str:
        try:
            prompt.encode("utf-8")
        except UnicodeEncodeError as fault:
            raise ObservationError(
                f"prompt: not valid Unicode at character {fault.start} "
                "(a lone surrogate: bytes that were no UTF-8). Decode the text properly before."
            ) from fault
        if self.description.cleaning is Cleaning.NONE:
            return prompt
        return prompt.strip().replace("_", " ").replace("\n", " ")


def state_codes(state: NDArray[np.floating[Any]]) -> str:
    """The bins of a normalised state [W] as decimal numbers: -1 below -1, else 0..255, not
    clipped.
    """
    codes = np.searchsorted(_BIN_EDGES, state.astype(np.float64), side="right") - 1
    return " ".join(map(str, codes.tolist()))


def load_tokenizer(description: Prompt, folder: Path) -> Encode:
    """The encoder of the bundle's tokenizer file; see `PromptEncoder.load` for errors."""
    path = folder / description.tokenizer_file
    if not path.is_file() or path.resolve().parent != folder.resolve():
        raise BundleError(
            f"{path}: the tokenizer file is missing, or it is a link out of the bundle."
        )
    size = path.stat().st_size
    if size > MAXIMUM_TOKENIZER_BYTES:
        raise BundleError(f"{path}: {size} bytes; at most {MAXIMUM_TOKENIZER_BYTES} are read.")
    if description.tokenizer_kind is TokenizerKind.SENTENCEPIECE:
        return _load_sentencepiece(path, description.bos_id)
    return _load_tokenizers(path, description.bos_id)


def _load_sentencepiece(path: Path, bos_id: int) -> Encode:
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(path.read_bytes())
    except RuntimeError as fault:
        raise BundleError(f"{path}: not a sentencepiece model: {fault}.") from fault
    _check_bos(path, [processor.bos_id()], bos_id)

    def encode(text: str) -> list[int]:
        return list(processor.EncodeAsIds(text))

    return encode


def _load_tokenizers(path: Path, bos_id: int) -> Encode:
    try:
        import tokenizers
    except ImportError as fault:
        raise BundleError(
            f"{path}: reading it needs the wheel `tokenizers`: pip install 'policyc[tokenizers]'."
        ) from fault
    data = path.read_bytes()
    content = parse_json(data, str(path))
    if not isinstance(content, dict) or not {"model", "version"} <= set(content):
        raise BundleError(
            f"{path}: not a tokenizer.json: the keys 'version' and 'model' are missing."
        )
    tokenizer = tokenizers.Tokenizer.from_str(data.decode("utf-8"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    _check_bos(path, list(tokenizer.encode("").ids), bos_id)

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    return encode


def _check_bos(path: Path, found: list[int], bos_id: int) -> None:
    if found != [bos_id]:
        raise BundleError(
            f"{path}: an empty text starts with ids {found}, expected [{bos_id}] (bos). "
            "The tokenizer is not the one the policy was compiled with."
        )
