"""Strings on which tokenizers disagree."""

TEXTS = [
    "",
    "a",
    " ",
    "  ",
    "   x",
    "Hello  wörld\n\n 123",
    "1234567 89 3.14159",
    "١٢٣ ४५६ ⅷ²",
    "I'm you'RE we'll they'Ve 'tis",
    "\t\ttabs\r\n\r\n  mixed \u00a0nbsp\u3000wide",
    "今天的天气很好。明天呢？",
    "Příliš žluťoučký kůň úpěl ďábelské ódy",
    "\U0001f9d1\u200d\U0001f680 ok \U0001f1ef\U0001f1f5\U0001f469\u200d\U0001f469\u200d\U0001f467",
    "a\u0301b\u200d\ufeffc",
    "def f(x):\n    return x**2  # ^~|<=>",
    "ªº¼ Ⅻ ſ ǅ",
    "don't!!!...??? --- $100+€5=¥7",
    "HELLOWorld camelCase snake_case XMLHttpRequest",
    "ไทยภาษา हिन्दी العربية עברית 한국어 かな",
    "\n\n\n",
    "x \n y\n \n z   ",
    "../path/to/file.txt http://a.b/c?d=e&f",
    "  leading and trailing  ",
    "\u2028\u2029\x85 sep",
    "’s ‘t “q”",
    "a" * 50 + " " * 20 + "b",
]
BYTE_LEVEL = [*TEXTS, "<|im_start|>user\nHi<|im_end|>\n", "<|endoftext|>  <|im_end|>x"]
SENTENCEPIECE = [
    *TEXTS,
    "<s>hi</s> there",
    "x<tool>y <tool> z",
    "<tool>",
    "<s>",
    " </s> a",
]
