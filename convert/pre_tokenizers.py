"""How text is cut into words before byte-pair merging, by GGUF's `tokenizer.ggml.pre`."""

from __future__ import annotations

from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Sequence, Split

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LLAMA3 = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_WORDS = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{{0}}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{{0}}"
)
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = _WORDS.replace("{0}", "") + r"|\p{N}" + _TAIL
_GPT4O = _WORDS.replace("{0}", _CONTRACTIONS + "?") + r"|\p{N}{1,3}" + _TAIL
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+")
_DEFAULT = r"[\p{P}\$\+<=>\^~\|]+"
_DEFAULT_NUMBERS = (r"\p{N}+", r"[0-9][0-9][0-9]")


def _gpt2() -> PreTokenizer:
    return ByteLevel(add_prefix_space=False, use_regex=True)


def _split(pattern: str) -> PreTokenizer:
    return Split(Regex(pattern), behavior="isolated")


def _splits(*patterns: str) -> list[PreTokenizer]:
    return [_split(pattern) for pattern in patterns]


def _plain_bytes() -> PreTokenizer:
    return ByteLevel(add_prefix_space=False, use_regex=False)


def _parts(name: str) -> list[PreTokenizer] | None:
    match name:
        case "gpt-2" | "gpt2" | "phi-2" | "olmo" | "mpt" | "jina-es" | "jina-de" | "trillion":
            return [_gpt2()]
        case "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" | "exaone":
            return [Digits(individual_digits=True), _gpt2()]
        case "llama-bpe" | "llama3" | "llama-v3" | "falcon3" | "smaug-bpe" | "dbrx" | "pixtral":
            return [*_splits(_LLAMA3), _plain_bytes()]
        case "qwen2" | "deepseek-r1-qwen" | "stablelm2" | "megrez":
            return [*_splits(_QWEN2), _plain_bytes()]
        case "tekken":
            return [*_splits(_TEKKEN), _plain_bytes()]
        case "gpt-4o" | "llama4":
            return [*_splits(_GPT4O), _plain_bytes()]
        case "deepseek-coder":
            digits = Digits(individual_digits=True)
            return [*_splits(*_DEEPSEEK_CODER), digits, _plain_bytes()]
        case "default":
            return [
                _split(_DEFAULT),
                *_default_words(),
                *_splits(*_DEFAULT_NUMBERS),
                _plain_bytes(),
            ]
    return None


def _default_words() -> list[PreTokenizer]:
    words = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    return [_split(words)]


NAMES = (
    "codeshell",
    "command-r",
    "dbrx",
    "deepseek-coder",
    "deepseek-r1-qwen",
    "default",
    "exaone",
    "falcon3",
    "gpt-2",
    "gpt-4o",
    "jina-de",
    "jina-es",
    "llama-bpe",
    "llama4",
    "megrez",
    "mpt",
    "olmo",
    "phi-2",
    "pixtral",
    "qwen2",
    "refact",
    "smaug-bpe",
    "smollm",
    "stablelm2",
    "starcoder",
    "tekken",
    "trillion",
)
IGNORES_MERGES = frozenset({"llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "tekken"})


def pre_tokenizer(name: str) -> PreTokenizer:
    """The pre-tokenizer GGUF calls `name`.

    Raises ValueError for a name that is not known: a guess would give other ids than the original.
    """
    parts = _parts(name)
    if parts is None:
        raise ValueError(
            f"tokenizer.ggml.pre={name!r} is not supported; supported: {', '.join(NAMES)}"
        )
    return parts[0] if len(parts) == 1 else Sequence(parts)
