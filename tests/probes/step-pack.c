/* step-pack: prints the packer's rows for a file of records, as JSON lines, with weights, old and documents where a row
 * has them. With "resume" it checks that packing can continue at the end of every row with the same result.
 * usage: step-pack docs|concat|none[,split|drop|truncate] SEQ FILE [resume] */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "../../mt-step/pack.h"
#include "cli/cli.h"
#include "mt/error.h"

enum { VOCAB = 1 << 30 };

struct opened {
	struct record_reader in;
	struct packer packer;
};

static void open_packer(struct opened *o, const char *file, uint32_t how, uint32_t seq)
{
	int fd = open(file, O_RDONLY);
	mt_must(fd < 0 ? mt_fail(MT_EX_NOINPUT, "%s", file) : 0);
	mt_must(record_open(&o->in, fd, file));
	mt_must(packer_open(&o->packer, &o->in, how, seq, &(struct vocabulary){.size = VOCAB}));
}

static void close_packer(struct opened *o)
{
	packer_close(&o->packer);
	record_close(&o->in);
	close(o->in.fd);
}

static void print(const char *key, const uint32_t *a, uint32_t n)
{
	printf("%s\"%s\": [", key[1] == 'o' ? "{" : ", ", key);
	for (uint32_t i = 0; i < n; i++) printf("%s%d", i ? ", " : "", (int)a[i]);
	printf("]");
}

static void print_floats(const char *key, const float *a, uint32_t n)
{
	printf(", \"%s\": [", key);
	for (uint32_t i = 0; i < n; i++) printf("%s%.9g", i ? ", " : "", (double)a[i]);
	printf("]");
}

static bool any(const float *a, uint32_t n)
{
	uint32_t i = 0;
	while (i < n && a[i] == 0) i++;
	return i < n;
}

static void print_documents(const struct packer *p)
{
	uint32_t plain = 0;
	while (plain < p->n_in_row && !p->in_row[plain].side && p->in_row[plain].ref == 0) plain++;
	if (plain == p->n_in_row) return;
	for (uint32_t i = 0; i < p->n_in_row; i++) {
		const struct mt_document *d = &p->in_row[i];
		printf("%s[%u, %u, %.17g]", i ? ", " : ", \"documents\": [", d->begin, d->side, d->ref);
	}
	printf("]");
}

/* Compare the rows after each position, packed from the file's start, with the rows of one pass. */
static void resume(const char *file, uint32_t how, uint32_t seq)
{
	struct opened whole, part;
	uint32_t a[3 * seq], b[3 * seq];
	float weights[2][seq], old[2][seq];
	struct mt_document documents[2][seq];
	memset(documents, 0, sizeof documents);
	open_packer(&whole, file, how, seq);
	whole.packer.weights = weights[0];
	whole.packer.old = old[0];
	whole.packer.in_row = documents[0];
	int rows = 0, rc;
	struct mt_position pos = {0};
	while (packer_position(&whole.packer, &pos), (rc = packer_row(&whole.packer, a, a + seq, a + 2 * seq)) > 0) {
		open_packer(&part, file, how, seq);
		if (rows) mt_must(packer_skip(&part.packer, &pos));
		part.packer.weights = weights[1];
		part.packer.old = old[1];
		part.packer.in_row = documents[1];
		mt_must(packer_row(&part.packer, b, b + seq, b + 2 * seq));
		if (memcmp(a, b, sizeof a) || memcmp(weights[0], weights[1], sizeof weights[0]) ||
			memcmp(old[0], old[1], sizeof old[0]) || whole.packer.n_in_row != part.packer.n_in_row ||
			memcmp(documents[0], documents[1], sizeof **documents * part.packer.n_in_row))
			mt_die(1, "row %d differs after a restart", rows);
		if (rows) { /* and a position of other input is refused */
			struct mt_position other = pos;
			other.hash ^= !pos.offset;
			other.hash_cut ^= pos.offset != 0;
			close_packer(&part);
			open_packer(&part, file, how, seq);
			if (packer_skip(&part.packer, &other) != -MT_EX_DATA) mt_die(1, "row %d: a wrong hash is taken", rows);
		}
		close_packer(&part);
		rows++;
	}
	mt_must(rc);
	close_packer(&whole);
	printf("%d rows\n", rows);
}

int main(int argc, char **argv)
{
	if (argc < 4) return 64;
	char *names[2] = {strtok(argv[1], ","), strtok(NULL, ",")};
	uint32_t how = 0;
	if (!pack_how_parse(names[0], &how) || (names[1] && !pack_long_parse(names[1], &how))) return 64;
	uint32_t seq = (uint32_t)atoi(argv[2]), row[3 * seq];
	if (argc > 4) {
		resume(argv[3], how, seq);
		return 0;
	}
	float weights[seq], old[seq];
	struct mt_document documents[seq];
	struct opened o;
	open_packer(&o, argv[3], how, seq);
	o.packer.weights = weights;
	o.packer.old = old;
	o.packer.in_row = documents;
	int rc;
	while ((rc = packer_row(&o.packer, row, row + seq, row + 2 * seq)) > 0) {
		print("tokens", row, seq);
		print("targets", row + seq, seq);
		print("starts", row + 2 * seq, seq);
		if (o.packer.weighted) print_floats("weights", weights, seq);
		if (any(old, seq)) print_floats("old", old, seq);
		print_documents(&o.packer);
		puts("}");
	}
	mt_must(rc);
	close_packer(&o);
	return 0;
}
