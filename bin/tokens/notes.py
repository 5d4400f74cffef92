"""Remarks at the end about input that is not wrong: one line of each kind, with its count."""


SHOWN = 20      # names in a line


def many(n, noun):
    return "%d %s%s" % (n, noun, "" if n == 1 else "s")


class Notes:
    def __init__(self):
        self.at = None                      # the line that is being converted
        self.once, self.counted, self.keys, self.roles, self.lost, self.ends = {}, {}, {}, {}, {}, {}
        self.reasons = 0                    # why a document may have no tokens to train on: how many there were

    def say(self, message):
        self.once[message] = True

    def count(self, one, several):
        """A sentence that begins with the noun, for one and for several of them."""
        times, first = self.counted.get((one, several), (0, self.at))
        self.counted[one, several] = times + 1, first

    def lose(self, reason):
        """A turn of the assistant on which loss cannot be computed."""
        self.lost[reason] = self.lost.get(reason, 0) + 1
        self.reasons += 1

    def role(self, role):
        """A role that no form of mt-tokens knows."""
        self.roles[role] = self.roles.get(role, 0) + 1

    def unused(self, line, used):
        for key, value in line.items():
            if key not in used and value is not None:
                self.keys[key] = self.keys.get(key, 0) + 1

    def end(self, ids, trained):
        """The last token of each answer of a chat, place 0, and the one before: a line break may be behind its end."""
        for at in range(len(ids)):
            if trained[at] and not any(trained[at + 1:at + 2]):
                for place in range(1 + (at > 0 and trained[at - 1])):
                    key = place, ids[at - place]
                    self.ends[key] = self.ends.get(key, 0) + 1

    def add(self, other):
        self.once.update(other.once)
        for sentence, (times, first) in other.counted.items():
            have, earlier = self.counted.get(sentence, (0, first))
            self.counted[sentence] = have + times, earlier
        for mine, others in ((self.keys, other.keys), (self.roles, other.roles), (self.lost, other.lost),
                             (self.ends, other.ends)):
            for key, times in others.items():
                mine[key] = mine.get(key, 0) + times

    def lines(self):
        """For stderr, at the end."""
        yield from self.once
        for (one, several), (times, first) in self.counted.items():
            yield "%d %s; the first is in %s" % (times, one if times == 1 else several, first)
        for what, noun, named in (("roles that are context, as all but assistant are", "turn", self.roles),
                                  ("keys that are not used", "line", self.keys)):
            if named:
                yield "%s: %s" % (what, ", ".join(
                    ["'%s' (in %s)" % (name, many(times, noun)) for name, times in list(named.items())[:SHOWN]]
                    + ["and %d more" % (len(named) - SHOWN)] * (len(named) > SHOWN)))

    def losses(self):
        """For the closing line."""
        return "".join("; %s of the assistant %s context only: %s"
                       % (many(times, "turn"), "is" if times == 1 else "are", reason)
                       for reason, times in self.lost.items())
