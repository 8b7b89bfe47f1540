"""Write the tables of docs/results.md: python scripts/document_formats.py"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "results.md"
SCHEMAS = ROOT / "poprun" / "result" / "schemas"
# The tables stand below this line of the page.
MADE = "<!-- From here on made by scripts/document_formats.py. -->\n"


def page(text: str) -> str:
    """Return the page with the tables as the schemas have them."""
    above, line, _ = text.partition(MADE)
    return above + line + "\n".join(_tables()) + "\n"


def _tables() -> Iterator[str]:
    result = json.loads((SCHEMAS / "result.json").read_text())
    yield "\n## The fields of a result\n"
    yield from _fields(result)
    for name, title in (("attempt", "an attempt"), ("instance", "an instance")):
        yield f"\n## The fields of {title}\n"
        yield from _fields(result["$defs"][name])
    events = json.loads((SCHEMAS / "events.json").read_text())
    yield "\n## The fields of each event\n"
    yield from _fields(events)
    yield "\n## The events, and their further fields\n"
    yield "| event | meaning | fields |"
    yield "| --- | --- | --- |"
    for name, event in events["$defs"].items():
        names = [f"`{field}`" for field in event["properties"] if field != "event"]
        meaning = event.get("description", "")
        yield f"| `{name}` | {meaning} | {', '.join(names)} |"


def _fields(schema: dict[str, Any]) -> Iterator[str]:
    yield "| field | type | meaning |"
    yield "| --- | --- | --- |"
    for name, field in schema["properties"].items():
        yield f"| `{name}` | {_type(field)} | {field.get('description', '')} |"


def _type(field: dict[str, Any]) -> str:
    if "const" in field:
        return f"`{json.dumps(field['const'])}`"
    if "enum" in field:
        return ", ".join(f"`{word}`" for word in field["enum"])
    types = field["type"] if isinstance(field["type"], list) else [field["type"]]
    return " or ".join(types)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
