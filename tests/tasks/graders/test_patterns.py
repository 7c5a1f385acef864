import pytest

from partita.tasks.graders.patterns import FormError, json_schema, read_json, regex_format

PERSON = {"type": "object", "required": ["name"], "properties": {"age": {"type": "integer", "minimum": 0}}}


@pytest.mark.parametrize(
    ("response", "pattern", "whole", "reward"),
    [
        ("<think>a\nb</think>5", r"(?s)<think>.*</think>\d+", True, 1),
        ("<think>a</think>5!", r"(?s)<think>.*</think>\d+", True, 0),
        ("It is 5!", r"\d+", False, 1),
        ("It is 5!", r"\d+", True, 0),
        ("", r".*", True, 1),
    ],
)
def test_patterns(response, pattern, whole, reward):
    assert regex_format(response, pattern, whole) == reward


def test_a_pattern_that_backtracks_without_end_is_an_error_within_its_limit():
    with pytest.raises(FormError, match=r"pattern '\(a\+\)\+b': takes longer than 0.3 seconds"):
        regex_format("a" * 60, "(a+)+b", limit_seconds=0.3)
    assert regex_format("aab", "(a+)+b") == 1.0


def test_a_bad_pattern_says_what_is_wrong():
    with pytest.raises(FormError, match=r"pattern '\(': .*missing \)"):
        regex_format("a", "(")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"a": 1}', ({"a": 1},)),
        ("null", (None,)),
        ('So:\n```json\n{"a": 1}\n```\nas you see', ({"a": 1},)),
        ('```json\n{"a": 1}\n```\n```json\n{"a": 2}\n```\n```\nx\n```', ({"a": 2},)),
        ("```\n[1]\n```", ([1],)),
        ('It is {"a": 1}', None),
        ("{'a': 1}", None),
        ("NaN", None),
        ("[" * 100_000, None),
        ("1" * 5000, None),
        ("", None),
    ],
)
def test_the_json_of_a_response(text, found):
    assert read_json(text) == found


def test_without_a_schema_any_json_will_do():
    assert json_schema("<think>x</think>[1]") == 1.0 and json_schema("[1") == 0.0 and json_schema("<think>[1]") == 0.0


def test_a_schema_must_fit():
    pytest.importorskip("jsonschema")
    assert json_schema('{"name": "x", "age": 3}', PERSON) == 1.0
    assert json_schema('{"name": "x", "age": -3}', PERSON) == 0.0
    assert json_schema('{"age": 3}', '{"required": ["name"]}') == 0.0
    deep, lists = "[" * 900 + "]" * 900, {"type": "array", "items": {"$ref": "#"}}
    assert json_schema(deep, {"type": "array"}) == 1.0 and json_schema(deep, lists) == 0.0  # too deep to be checked
    with pytest.raises(FormError, match="schema: SchemaError"):
        json_schema("1", {"type": "nothing"})
    with pytest.raises(FormError, match="the schema is not JSON"):
        json_schema("1", "{")
    with pytest.raises(FormError, match="schema: takes longer"):
        json_schema(f'"{"a" * 60}"', {"pattern": "^(a+)+b$"}, limit_seconds=0.3)
    with pytest.raises(FormError, match=r"(?i)schema: .*(unresolvable|unretrievable|nosuchresource)"):
        json_schema("1", {"$ref": "http://localhost:9/schema.json"})
