/* best.c: --keep-best: which checkpoint had the lowest eval loss? mt-step's metrics say so: an evaluation ends after
 * the save of its step may have begun, so the checkpoint itself cannot. */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt.h"

static bool among(uint64_t step, const uint64_t *steps, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (steps[i] == step) return true;
	return false;
}

/* Step and eval loss of a line; false: it has none, or its loss was not finite. */
static bool evaluation(const char *line, uint64_t *step, double *loss)
{
	json_t *m = json_loads(line, 0, NULL);
	json_t *s = json_object_get(m, "step"), *l = json_object_get(m, "eval_loss");
	bool is = json_is_integer(s) && json_is_number(l);
	if (is) {
		*step = (uint64_t)json_integer_value(s);
		*loss = json_number_value(l);
	}
	json_decref(m);
	return is;
}

int best_checkpoint(const char *metrics, const uint64_t *steps, size_t n, uint64_t *best)
{
	int fd = open(metrics, O_RDONLY | O_NONBLOCK | O_CLOEXEC); /* opening a FIFO must not wait */
	struct stat st;
	bool regular = fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
	FILE *f = regular ? fdopen(fd, "r") : NULL;
	char *line = NULL;
	size_t room = 0;
	uint64_t step;
	double loss, lowest = 0;
	int found = 0;
	if (!f) {
		mt_fail(MT_EX_IO, "--keep-best %s: %s", metrics, fd < 0 || regular ? strerror(errno) : "not a regular file");
		if (fd >= 0) close(fd);
		return -MT_EX_IO;
	}
	while (getline(&line, &room, f) > 0)
		if (evaluation(line, &step, &loss) && among(step, steps, n) && (!found || loss < lowest)) {
			found = 1;
			lowest = loss;
			*best = step;
		}
	if (ferror(f)) found = mt_fail(MT_EX_IO, "--keep-best %s: %s", metrics, strerror(errno));
	free(line);
	fclose(f);
	return found;
}
