"""Rows as people bring them, for the tests of reading them."""

BAKERY = [
    {
        "question": "A bakery packs 24 rolls in a box and fills 45 boxes. How many rolls?",
        "answer": "One box holds 24.\nSo 24*45=<<24*45=1080>>1080 rolls.\n#### 1,080",
    },
    {"question": "It was 3 degrees, then 7 colder. What now?", "answer": "3-7=<<3-7=-4>>-4.\n#### -4"},
    {"question": "A pen costs $0.75. What do 3 cost?", "answer": "3*0.75=<<3*.75=2.25>>2.25.\n#### 2.25"},
]
SOLVED = [
    {"problem": "Half of 5?", "level": "Level 1", "solution": "It is $\\frac{5}{2} = \\boxed{\\frac{5}{2}}$."},
    {"problem": "2+2?", "level": "Level 2", "solution": "First \\boxed{3}, no: \\boxed{4}"},
]
COUNTDOWN = [{"target": 33, "nums": [3, 7, 12]}, {"target": 12, "nums": [20, 4, 2, 6]}]
