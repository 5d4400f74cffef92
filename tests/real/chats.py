#!/usr/bin/env python3
"""Write the conversations of chitchat-dataset as lines that mt-tokens reads.

The first speaker is the user, the other one the assistant. Messages sent one after the other become one,
a line each. Conversations in which only one of them speaks are left out, and those of more than six turns, so that
a row holds several. The first N others are written. usage: chats.py DATASET.json N >chats.jsonl
"""
import json
import sys


def main():
    with open(sys.argv[1], encoding="utf-8") as f:
        conversations = json.load(f).values()
    left = int(sys.argv[2])
    for conversation in conversations:
        turns = [(turn[0]["sender"], "\n".join(message["text"] for message in turn))
                 for turn in conversation["messages"] if turn]
        if left and len(turns) <= 6 and len({sender for sender, _ in turns}) == 2:
            left -= 1
            roles = {True: "user", False: "assistant"}
            print(json.dumps({"messages": [{"role": roles[sender == turns[0][0]], "content": text}
                                           for sender, text in turns]}))


main()
