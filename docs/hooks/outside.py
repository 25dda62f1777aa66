"""Of a link to a file beside the documentation the site keeps the words and the file's name."""

import re
from typing import Any

_LINK = re.compile(r"\[([^\]]+)\]\((?:\.\./)+([^)#]+)(?:#[^)]*)?\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replace the links of a page that lead out of `docs/`."""
    inside = page.file.src_uri.count("/")  # `../` of a page in a folder stays in docs/

    def told(match: re.Match[str]) -> str:
        climbs = match[0].count("../")
        if climbs <= inside:
            return match[0]
        text, path = match[1].strip("`"), match[2]
        return f"`{path}`" if text == path else f"{match[1]} (`{path}`)"

    return _LINK.sub(told, markdown)
