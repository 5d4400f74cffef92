#!/usr/bin/env python3
"""Multiple choice: which answer does a model find likeliest? QUESTIONS has a JSON object a line:
{"question": "2 + 2 =", "choices": [" 3", " 4"], "answer": 1}

    choices.py expand QUESTIONS | mt-tokens --no-eos MODEL - |
        mt-run --score --model MODEL --data - --seq 1024 | choices.py judge QUESTIONS

expand writes a line of prompt and completion for each choice. judge reads the lines of mt-score, one for each choice,
and prints the share of questions whose answer has the highest log-probability, in all and a token."""
import json
import sys

if len(sys.argv) != 3 or sys.argv[1] not in ("expand", "judge"):
    sys.exit(__doc__)
with open(sys.argv[2]) as file:
    questions = [json.loads(line) for line in file]
if sys.argv[1] == "expand":
    for q in questions:
        for choice in q["choices"]:
            print(json.dumps({"prompt": q["question"], "completion": choice}))
    sys.exit()

lines = [json.loads(line) for line in sys.stdin]
if len(lines) != sum(len(q["choices"]) for q in questions) or not lines:
    sys.exit("choices.py: mt-score wrote %d lines, and there are other numbers of choices" % len(lines))
right = by_token = at = 0
for q in questions:
    scores = [(line["logp"], line["targets"]) for line in lines[at : at + len(q["choices"])]]
    at += len(scores)
    right += max(range(len(scores)), key=lambda i: scores[i][0]) == q["answer"]
    by_token += max(range(len(scores)), key=lambda i: scores[i][0] / max(1, scores[i][1])) == q["answer"]
print(json.dumps({"questions": len(questions), "accuracy": right / len(questions),
                  "accuracy_by_token": by_token / len(questions)}))
