from __future__ import annotations

import ast

from pipeline.data.builtin import MIN_DOCSTRING_CHARS, stdlib_code, stdlib_files, stdlib_prose


def test_code_is_every_library_module_and_no_test_or_installed_package():
    documents = {document["id"]: document["text"] for document in stdlib_code()}
    assert "asyncio/base_events.py" in documents and "json/decoder.py" in documents
    assert not [name for name in documents if {"test", "tests", "site-packages"} & set(name.split("/")[:-1])]
    assert sum(len(text) for text in documents.values()) > 5_000_000
    ast.parse(documents["asyncio/base_events.py"])


def test_prose_is_the_help_topics_and_the_long_docstrings():
    documents = list(stdlib_prose())
    by_id = {document["id"]: document["text"] for document in documents}
    assert "pydoc_data.topics:lambda" in by_id
    assert by_id["json/__init__.py:dumps"].startswith("Serialize ``obj`` to a JSON formatted ``str``.")
    assert by_id["json/__init__.py:<module>"].startswith("JSON (JavaScript Object Notation)")
    docstrings = [document for document in documents if not document["id"].startswith("pydoc_data")]
    assert all(len(document["text"]) >= MIN_DOCSTRING_CHARS for document in docstrings)


def test_documents_come_in_the_same_order_every_time():
    assert [document["id"] for document in stdlib_code()] == [name for name, _ in stdlib_files()]
    assert list(stdlib_files()) == sorted(stdlib_files())
