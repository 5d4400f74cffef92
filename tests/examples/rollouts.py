#!/usr/bin/env python3
"""In the place of a sampler with a reward: prompts for mt-sample, and what its continuations are worth.

    rollouts.py prompts N                   records of prompts, each N times
    rollouts.py judge N <records            continuations with their prompts (mt-sample --echo) -> JSON lines for
                                            mt-tokens; the mean reward on stderr

The reward is the share of even tokens. The advantage of a sample is its reward minus the mean of its prompt's N."""
import array
import json
import sys

PROMPTS = [[3, 1], [4, 1, 5], [9, 2, 6, 5], [35]]

if len(sys.argv) != 3 or sys.argv[1] not in ("prompts", "judge"):
    sys.exit(__doc__)
group = int(sys.argv[2])
if sys.argv[1] == "prompts":
    for prompt in PROMPTS:
        sys.stdout.buffer.write(group * array.array("I", [len(prompt), *prompt]).tobytes())
    sys.exit()

words, samples = array.array("I", sys.stdin.buffer.read()), []
while words:
    samples.append(words[1 : 1 + words[0]].tolist())
    words = words[1 + words[0] :]
if len(samples) != group * len(PROMPTS):
    sys.exit("rollouts.py: expected %d samples of each of %d prompts" % (group, len(PROMPTS)))
total = 0
for at, prompt in enumerate(PROMPTS):
    answers = [sample[len(prompt) :] for sample in samples[at * group : (at + 1) * group]]
    rewards = [sum(token % 2 == 0 for token in answer) / len(answer) for answer in answers]
    total += sum(rewards)
    for answer, reward in zip(answers, rewards):
        print(json.dumps({"ids": prompt + answer, "trained": [0] * len(prompt) + [1] * len(answer),
                          "advantage": reward - sum(rewards) / group}))
print("mean reward: %.3f" % (total / len(samples)), file=sys.stderr)
