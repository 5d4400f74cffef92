"""The text of mt-stream --plan, compared with numbers of its JSON."""
import re

NUMBER = r"([\d.]+)"


def text_says(text, pattern, *values):
    """A line of TEXT begins with PATTERN, whose numbers are VALUES as far as their digits go."""
    found = re.search("^" + pattern, text, re.M)
    assert found, (pattern, text)
    for word, value in zip(found.groups(), values):
        last_digit = 10 ** -len(word.partition(".")[2])
        assert abs(float(word) - value) <= 0.501 * last_digit, (pattern, word, value, text)
