"""What is worth a line for people, though no line of the input is wrong: each once, with how often it came."""


class Notes:
    def __init__(self):
        self.at = None                      # the line that is being converted
        self.once, self.counted, self.keys, self.lost = {}, {}, {}, {}

    def say(self, message):
        self.once[message] = True

    def count(self, sentence):
        """A sentence with %d where the count is to stand."""
        times, first = self.counted.get(sentence, (0, self.at))
        self.counted[sentence] = times + 1, first

    def lose(self, reason):
        """A turn of the assistant on which loss cannot be computed."""
        self.lost[reason] = self.lost.get(reason, 0) + 1

    def unused(self, line, used):
        for key, value in line.items():
            if key not in used and value is not None:
                self.keys[key] = self.keys.get(key, 0) + 1

    def add(self, other):
        self.once.update(other.once)
        for sentence, (times, first) in other.counted.items():
            have, earlier = self.counted.get(sentence, (0, first))
            self.counted[sentence] = have + times, earlier
        for mine, others in (self.keys, other.keys), (self.lost, other.lost):
            for key, times in others.items():
                mine[key] = mine.get(key, 0) + times

    def lines(self):
        """For stderr, at the end."""
        yield from self.once
        for sentence, (times, first) in self.counted.items():
            yield "%s; the first is in %s" % (sentence % times, first)
        if self.keys:
            yield "keys that are not used: " + ", ".join("'%s' (in %d lines)" % each for each in self.keys.items())

    def losses(self):
        """For the closing line."""
        return "".join("; %d turns of the assistant are context only: %s" % (times, reason)
                       for reason, times in self.lost.items())
