"""Errors of the intermediate representation: all of them are our bugs, not the user's mistakes."""

from __future__ import annotations


class IrError(Exception):
    """Base of the errors raised by `compiler.ir`."""


class TypeMismatch(IrError):
    """An operation was given operands that its row of the op table does not admit."""


class VerifyError(IrError):
    """A graph breaks a rule; the message says where, what was expected and what was found."""


class ParseError(IrError):
    """Graph text that does not follow the text form; the message has the line."""


class InterpretError(IrError):
    """The interpreter was given an input or weight that does not fit the graph."""


class TensorFileError(Exception):
    """A safetensors file is damaged, unsafe or not one at all: the user's files, not our bug."""
