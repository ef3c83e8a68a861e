"""The colours of a figure where its reader's page is dark."""

_LIGHT_AND_DARK = {
    "1c2126": "e4e7ea",
    "5c6670": "9aa4ae",
    "c4cad0": "4a525a",
    "eef1f4": "2c343b",
    "ffffff": "1a1e22",
    "bf4f00": "f08a45",
    "0072b2": "3b94d9",
    "882255": "b8557f",
    "f3c9ad": "55382a",
}
"""The ink, paper and alarm of a figure, and the colours too dark for a dark page, each with what
stands for it there.
"""


def _dark_rules() -> str:
    rules = []
    for light, dark in _LIGHT_AND_DARK.items():
        rules.append(f"[style*='l: #{light}'],[fill='#{light}']{{fill:#{dark}!important}}")
        rules.append(f"[style*='e: #{light}']{{stroke:#{dark}!important}}")
    return "".join(rules)


DARK = _dark_rules()
SCHEME = f"@media(prefers-color-scheme:dark){{{DARK}}}"
"""The style of every figure, with its paper, so that it can be read wherever it stands."""
