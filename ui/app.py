"""The review app: decide failures, see what decisions changed, promote or roll back.

    streamlit run ui/app.py -- --home .nightshift --agent help-desk [--database-url ...] [--tracking-uri ...]

`nightshift ui` starts it with the settings of the project.
"""

from pathlib import Path

import streamlit as st

from components.errors import NightshiftError, Unavailable
from ui import format as fmt
from ui import session

STYLE = Path(__file__).parent / "style.css"
ICON = Path(__file__).parent / "icon.svg"
# File below `views/`, title, icon.
PAGES = (
    ("overview", "Overview", "monitoring"),
    ("failures", "Failures", "rule"),
    ("trajectories", "Trajectories", "forum"),
    ("data", "Data", "dataset"),
    ("memory", "Memory", "lightbulb"),
    ("promotion", "Promotion", "verified"),
)


def main() -> None:
    st.set_page_config(page_title="Nightshift", page_icon=str(ICON), layout="wide")
    st.html(STYLE)
    pages = [
        st.Page(
            f"views/{name}.py",
            title=title,
            icon=f":material/{icon}:",
            url_path=name,
            default=name == "overview",
        )
        for name, title, icon in PAGES
    ]
    page = st.navigation(pages)
    with st.sidebar:
        st.caption(f"Agent: {fmt.label(session.agent())}")
        session.ask_who()
    try:
        page.run()
        session.load_registry_soon()
    except Unavailable as error:
        st.error(fmt.label(str(error)))
        st.button("Try again")
    except NightshiftError as error:
        st.error(fmt.label(str(error)))


if __name__ == "__main__":
    main()
