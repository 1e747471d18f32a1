"""The documentation site: `make docs` builds it into site/, without a network. A broken link fails the build.

Documents at the project's root, such as README.md, are pages of the site too: a page that consists of the line
`<!-- file: README.md -->` is replaced by that file. Links between these documents and docs/ are written for a checkout;
this module rewrites them for the site. Pictures with a light and a dark version are written for GitHub, which follows
the reader's system; on the site they follow its own switch.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from sphinx.application import Sphinx

import oncemq

ROOT = Path(__file__).parent.parent
#: Documents outside docs/, and their pages.
PAGES = {
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "README.md": "index.md",
    "RELEASING.md": "releasing.md",
    "SECURITY.md": "security.md",
    "examples/README.md": "examples.md",
}

project = "OnceMQ"
project_copyright = "the OnceMQ developers"
version = release = oncemq.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
exclude_patterns = ["screens"]

html_theme = "furo"
html_title = f"OnceMQ {version}"
html_copy_source = False
# Options of the command line keep their two hyphens.
smartquotes = False

myst_heading_anchors = 4
# Pictures have the classes of the theme for light and dark pages.
myst_enable_extensions = ["attrs_inline"]
# Docstrings put code between single backticks, as Markdown does.
default_role = "code"
autodoc_class_signature = "separated"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
copybutton_exclude = ".linenos, .gp, .go"
# The console blocks show output that no lexer knows.
suppress_warnings = ["misc.highlighting_failure"]

_FILE = re.compile(r"<!-- file: (\S+) -->")
_PICTURE = re.compile(
    r'<picture>\s*<source media="\(prefers-color-scheme: dark\)" srcset="(?P<dark>[^"]+)">'
    r'\s*<img alt="(?P<alt>[^"]*)" src="(?P<light>[^"]+)">\s*</picture>'
)
_LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)(#[^)\s]*)?\)")


def setup(app: Sphinx) -> None:
    app.connect("source-read", read_source)


def read_source(_app: Sphinx, page: str, source: list[str]) -> None:
    """Put in the document that a page stands for, and rewrite the links of both."""
    page_folder = posixpath.dirname(page)
    source[0] = _relinked(source[0], posixpath.join("docs", page_folder), page_folder)
    if found := _FILE.search(source[0]):
        document = (ROOT / found[1]).read_text(encoding="utf-8")
        document = _relinked(document, posixpath.dirname(found[1]), page_folder)
        source[0] = source[0].replace(found[0], document)


def _relinked(text: str, folder: str, page_folder: str) -> str:
    """Rewrite the links of a document that lies in `folder`, for a page that lies in `page_folder` below docs/."""
    text = _PICTURE.sub(
        lambda found: (
            f"![{found['alt']}]({found['light']}){{.only-light}}\n![{found['alt']}]({found['dark']}){{.only-dark}}"
        ),
        text,
    )

    def rewritten(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link[1]))
        page = PAGES.get(target) or posixpath.relpath(target, "docs")
        return f"]({posixpath.relpath(page, page_folder or '.')}{link[2] or ''})"

    return _LINK.sub(rewritten, text)
