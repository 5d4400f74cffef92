/* words.c: words that several verbs share, and what logging out would delete. */
#include <dirent.h>
#include <linux/magic.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "mt/control.h"
#include "mt/run.h"
#include "store.h"

void run_id_text(struct mt_run *run, char id[33])
{
	for (int i = 0; i < 16; i++) snprintf(id + 2 * i, 3, "%02x", mt_control(run)->h.run_id[i]);
}

const char *moments_words(uint32_t dtype)
{
	static const char *const words[] = {[MT_BF16] = ", optimizer state bf16",
		[MT_INT8] = ", optimizer state int8",
		[MT_NONE] = ", no optimizer state"};
	return dtype <= MT_INT8 && words[dtype] ? words[dtype] : "";
}

const char *optim_words(uint32_t optim)
{
	return optim == MT_LION ? ", optimizer lion" : optim == MT_SGD ? ", optimizer sgd" : "";
}

const char *state_word(enum mt_state state)
{
	static const char *const words[] = {"empty", "filling", "filled", "dirty", "gone"};
	return state <= MT_GONE ? words[state] : "?";
}

uint64_t store_bytes(struct mt_run *run)
{
	return mt_nodes(run) > 1 ? mt_store_memory(run) : ((const struct mt_header *)mt_at(run, 0))->size;
}

/* KiB of the mapping around p that are mapped by huge pages, as smaps says: shmem's, a file's or hugetlbfs's */
static int64_t huge_kib(const void *p)
{
	FILE *f = fopen("/proc/self/smaps", "re");
	unsigned long from, end;
	long long kib, sum = 0;
	bool here = false, found = false;
	char line[512], key[32];
	while (f && fgets(line, sizeof line, f)) {
		if (sscanf(line, "%lx-%lx ", &from, &end) == 2) here = (uintptr_t)p >= from && (uintptr_t)p < end;
		else if (here && sscanf(line, "%31[A-Za-z_]: %lld kB", key, &kib) == 2 &&
			(!strcmp(key, "ShmemPmdMapped") || !strcmp(key, "FilePmdMapped") || !strcmp(key, "Shared_Hugetlb") ||
				!strcmp(key, "Private_Hugetlb"))) {
			sum += kib;
			found = true;
		}
	}
	if (f) fclose(f);
	return found ? sum : -1;
}

/* Reading an address maps the page there, small or huge: read one address of each sample, then count the huge mappings.
 * On several nodes the file has holes, which reading would fill. */
double store_on_huge_pages(struct mt_run *run)
{
	enum { SAMPLES = 64 };
	const uint64_t piece = 2 << 20;
	const char *base = mt_at(run, 0);
	uint64_t whole = store_bytes(run) / piece, n = whole < SAMPLES ? whole : SAMPLES;
	if (mt_nodes(run) > 1 || mt_page() > 4096) return -1; /* with pages of 64 KiB, huge ones have 512 MiB */
	for (uint64_t i = 0; i < n; i++) (void)*(const volatile char *)(base + i * whole / n * piece);
	int64_t kib = n ? huge_kib(base) : -1;
	double share = kib < 0 ? -1 : (double)kib * 1024 / (double)(n * piece);
	return share > 1 ? 1 : share;
}

/* ---- where regions lie */

bool outlives_memory(void)
{
	const char *elsewhere = getenv("MT_SHM_DIR");
	struct statfs fs;
	if (statfs(elsewhere && *elsewhere ? elsewhere : "/dev/shm", &fs)) return false;
	return fs.f_type != TMPFS_MAGIC && fs.f_type != HUGETLBFS_MAGIC && fs.f_type != RAMFS_MAGIC;
}

/* ---- RemoveIPC */

/* The last RemoveIPC= of a logind.conf; *removes stays as it is where there is none (logind.conf(5): the default is
 * yes) */
static void read_logind_conf(const char *path, bool *removes)
{
	char line[512];
	FILE *f = fopen(path, "re");
	while (f && fgets(line, sizeof line, f)) {
		char word[16];
		if (sscanf(line, " RemoveIPC = %15s", word) != 1) continue;
		*removes = strcmp(word, "no") && strcmp(word, "false") && strcmp(word, "off") && strcmp(word, "0");
	}
	if (f) fclose(f);
}

static void read_drop_ins(const char *dir, bool *removes)
{
	struct dirent **found;
	int n = scandir(dir, &found, NULL, alphasort);
	for (int i = 0; i < n; i++) {
		char path[512];
		const char *dot = strrchr(found[i]->d_name, '.');
		if (dot && strcmp(dot, ".conf") == 0) {
			snprintf(path, sizeof path, "%s/%s", dir, found[i]->d_name);
			read_logind_conf(path, removes);
		}
		free(found[i]);
	}
	if (n >= 0) free(found);
}

/* Does this user linger after logout? The name is read from /etc/passwd: getpwuid's name services end the program where
 * they get no memory. Users of a directory service are known by USER. */
static bool user_lingers(void)
{
	char path[300];
	const char *name = getenv("USER");
	struct stat st;
	FILE *f = fopen("/etc/passwd", "re");
	for (const struct passwd *p; f && (p = fgetpwent(f));)
		if (p->pw_uid == geteuid()) {
			name = p->pw_name;
			break;
		}
	snprintf(path, sizeof path, "/var/lib/systemd/linger/%s", name ? name : "");
	if (f) fclose(f);
	return name && *name && !strchr(name, '/') && stat(path, &st) == 0;
}

bool logout_removes(void)
{
	enum { SYSTEM_USERS = 1000 }; /* logind leaves system users' files alone: below login.defs' UID_MIN */
	struct stat st;
	const char *elsewhere = getenv("MT_SHM_DIR");
	if (elsewhere && *elsewhere) return false;
	if (geteuid() < SYSTEM_USERS || stat("/run/systemd/system", &st) < 0) return false;
	if (user_lingers()) return false;
	bool removes = true;
	read_logind_conf("/usr/lib/systemd/logind.conf", &removes);
	read_logind_conf("/etc/systemd/logind.conf", &removes);
	read_drop_ins("/usr/lib/systemd/logind.conf.d", &removes);
	read_drop_ins("/run/systemd/logind.conf.d", &removes);
	read_drop_ins("/etc/systemd/logind.conf.d", &removes);
	return removes;
}
