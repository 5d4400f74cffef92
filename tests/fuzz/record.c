/* Reading of records by mt-step and mt-feed, and packing into rows */
#include <math.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fuzz.h"
#include "pack.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	enum { SEQ = 8 };
	struct bytes in = {data, size};
	uint32_t row[3 * SEQ], x = take_u32(&in), how = (1 + x % 3) | x / 3 % 3 << 8;
	struct record_reader r;
	struct packer p;
	int fd = memfd_create("records", 0);
	if (fd < 0 || (in.n && write(fd, in.p, in.n) != (ssize_t)in.n) || lseek(fd, 0, SEEK_SET)) abort();
	if (record_open(&r, fd, "x")) abort();
	if (packer_open(&p, &r, how, SEQ, &(struct vocabulary){.size = 1000}) == 0) {
		struct place places[SEQ] = {0}, last = {0};
		float weights[SEQ];
		p.places = places;
		p.weights = weights;
		while (packer_row(&p, row, row + SEQ, row + 2 * SEQ) > 0)
			for (uint32_t t = 0; t < SEQ; t++) {
				if (row[t] >= 1000 || (row[SEQ + t] >= 1000 && row[SEQ + t] != MT_NO_TARGET) || row[2 * SEQ + t] > t)
					abort();
				if (!isfinite(weights[t]) || (!p.weighted && weights[t] != 1)) abort();
				struct place now = places[t];
				if (!now.record) continue;
				if (!t && now.document > 1) abort(); /* a group is never in two rows */
				if (now.record == last.record ? now.document < last.document : now.document > 1) abort();
				last = now;
			}
		packer_close(&p);
	}
	record_close(&r);
	close(fd);
	return 0;
}
