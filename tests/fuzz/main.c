/* main.c: replaces libFuzzer for other compilers. Each named file is an input; so are each of its prefixes, and each
 * change of one byte in a few ways. Options of libFuzzer (-x=y) are ignored. */
#include <stdio.h>
#include <sys/stat.h>
#include <dirent.h>

#include "fuzz.h"

static void one(const char *path)
{
	FILE *f = fopen(path, "rb");
	static uint8_t data[1 << 16];
	static const uint8_t change[] = {0x01, 0x80, 0xff};
	if (!f) return;
	size_t n = fread(data, 1, sizeof data, f);
	fclose(f);
	LLVMFuzzerTestOneInput(data, n);
	for (size_t i = 0; i < n && i < 2048; i++) {
		LLVMFuzzerTestOneInput(data, i);
		for (size_t c = 0; c < sizeof change; c++) {
			data[i] ^= change[c];
			LLVMFuzzerTestOneInput(data, n);
			data[i] ^= change[c];
		}
	}
}

static void all(const char *path)
{
	struct stat st;
	DIR *d;
	if (stat(path, &st)) return;
	if (!S_ISDIR(st.st_mode)) {
		one(path);
		return;
	}
	if (!(d = opendir(path))) return;
	for (struct dirent *e; (e = readdir(d));) {
		char file[4096];
		snprintf(file, sizeof file, "%s/%s", path, e->d_name);
		if (e->d_name[0] != '.') one(file);
	}
	closedir(d);
}

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++)
		if (argv[i][0] != '-') all(argv[i]);
	return 0;
}
