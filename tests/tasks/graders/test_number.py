from fractions import Fraction

import pytest

from partita.tasks.graders.number import Number, equal, last_number, read_number

ALL_1234 = r"""
1234|1,234|1{,}234|1\,234|1,234.0|1234.|+1234|1,\!234|$1,234|\$1,234|1234€|\text{1,234}|(1234)|{1234}|**1234**|x=1234
01234|1.234e3|1.234\times10^3|1.234\cdot10^{3}|2468/2|\frac{2468}{2}|1234°|1 234|$ 1234 $|x_1 = 1234|1234 kg
1234\text{ km}/\text{h}|USD 1234|1234 m/s|1234 \mathrm{cm}^2|1234 square metres|1233 1/1|\left(1234\right)
1234^\circ|1234 apples.|\ 1234
"""
NO_NUMBER = r"""
x|1,2|12,34|0,123|1 23|1,234 567|28x|28\pi|28 or 29|2 million|3 dozen|2+3|5/0|\sqrt{4}|\frac{5}{0}|5 = 5|1.2.3|--5|1e9999
5:30|(1,234|half|5 and a half
"""


def listed(text):
    return text.strip().replace("\n", "|").split("|")


@pytest.mark.parametrize("text", listed(ALL_1234))
def test_all_these_are_1234(text):
    number = read_number(text)
    assert number is not None and number.value == 1234 and not number.percent


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("-4", Fraction(-4)),
        ("−4", Fraction(-4)),
        ("-$5", Fraction(-5)),
        ("$-5", Fraction(-5)),
        ("007", Fraction(7)),
        (".5", Fraction(1, 2)),
        ("-\\frac94", Fraction(-9, 4)),
        ("\\dfrac{-9}{4}", Fraction(-9, 4)),
        ("2\\frac{1}{4}", Fraction(9, 4)),
        ("-2 1/4", Fraction(-9, 4)),
        ("3/4 cup", Fraction(3, 4)),
        ("0.1", Fraction(1, 10)),
        ("10^{-2}", Fraction(1, 100)),
        ("10^-2", Fraction(1, 100)),
        ("10^12", Fraction(10**12)),
        ("‒4", Fraction(-4)),
        ("－4", Fraction(-4)),
        ("½", Fraction(1, 2)),
        ("2½", Fraction(5, 2)),
        ("-2 ¾", Fraction(-11, 4)),
        ("1⁄2", Fraction(1, 2)),
        ("6.02×10²³", 602 * Fraction(10) ** 21),
        ("10⁻³", Fraction(1, 1000)),
        ("12 \\text{cm}\\cdot\\text{s}^{-1}", Fraction(12)),
        ("3,118,007", Fraction(3118007)),
    ],
)
def test_values_are_exact(text, value):
    number = read_number(text)
    assert number is not None and (number.value, number.percent, number.name) == (value, False, "")


@pytest.mark.parametrize("text", [*listed(NO_NUMBER), "", "9" * 300])
def test_all_these_are_not_one_plain_number(text):
    assert read_number(text) is None


def test_a_percent_sign_stands_for_two_values_unless_both_have_it():
    sixty, percent, share = read_number("60"), read_number("60\\%"), read_number("0.6")
    assert equal(percent, sixty) and equal(sixty, percent) and equal(percent, share)
    assert equal(percent, read_number("60 percent")) and not equal(sixty, share)
    assert not equal(read_number("0.6%"), percent) and not equal(read_number("0.05"), read_number("5"))


def test_names_before_an_equals_sign_must_agree_when_both_have_one():
    assert equal(read_number("x = 5"), read_number("5"))
    assert not equal(read_number("x=5"), read_number("y=5"))


def test_known_units_must_agree_and_others_are_left_aside():
    kilos = read_number("28 kg")
    assert kilos.unit == "kg" and equal(kilos, read_number("28 \\text{ kilograms}")) and equal(kilos, read_number("28"))
    assert not equal(kilos, read_number("28 g")) and not equal(kilos, read_number("\\$28"))
    assert equal(kilos, read_number("28 apples")) and equal(read_number("28 apples"), read_number("28 pears"))
    assert not equal(read_number("10 cm"), read_number("10 cm^2"))
    assert equal(read_number("10 \\text{ km}/\\text{h}"), read_number("10 kilometres / hour"))
    assert equal(read_number("\\$10"), read_number("10 dollars")) and read_number("$10$").unit == ""


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.\\overline{3}", Fraction(1, 3)),
        ("0.1\\bar{6}", Fraction(1, 6)),
        ("-2.\\overline{54}", Fraction(-28, 11)),
        ("0.\\overline{9}", Fraction(1)),
        (".\\dot3", Fraction(1, 3)),
    ],
)
def test_repeating_decimals_are_exact(text, value):
    assert read_number(text).value == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("The answer is 1080.", 1080),
        ("The answer is $\\frac{1}{2}$.", Fraction(1, 2)),
        ("It takes 1 1/2 hours", Fraction(3, 2)),
        ("2\\frac{1}{4} cups", Fraction(9, 4)),
        ("about 10^6", 10**6),
        ("about 10^{-2}", Fraction(1, 100)),
        ("it is 2 \\times 10^{-2} m", Fraction(1, 50)),
        ("it is 1.5×10³", 1500),
        ("it is 3 x 10^5", 300_000),
        ("it is 1e2", 100),
        ("it is 2.5E-1", Fraction(1, 4)),
        ("3 x 10 is 30", 30),
        ("2½ cups", Fraction(5, 2)),
        ("5 cm²", 5),
        ("2^{10}", 1024),
        ("an area of 5 cm^2", 5),
        ("an area of 5 cm^{2}", 5),
        ("x_1 is 7, larger than x_2", 7),
        ("5 = x^12", 5),
        ("so she has $1,234.50 in total", Fraction(2469, 2)),
        ("7 - 3 = -4", -4),
        ("3-7=-4", -4),
        ("10-4", 4),
        ("10 - 4", 4),
        ("= - 4", -4),
        ("It costs -$5", -5),
        ("9/4", Fraction(9, 4)),
        ("1{,}234", 1234),
        ("wait...5", 5),
        ("12, 88, 3, 54", 54),
        ("a .75 share", Fraction(3, 4)),
    ],
)
def test_the_last_number_of_a_text(text, value):
    number = last_number(text)
    assert number is not None and number.value == value


def test_a_text_without_digits_has_no_last_number():
    assert last_number("I do not know.") is None
    assert last_number("5" + " " * 3000) is None
    assert last_number("at 12:45") is None and last_number("10^1000") is None and last_number("0^-1") is None
    assert last_number("it is 25%") == Number(Fraction(25), percent=True)
