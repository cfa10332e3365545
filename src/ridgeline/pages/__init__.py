"""An answer as a page and as pictures: HTML without network, SVG, PNG; no arithmetic beyond scaling."""
