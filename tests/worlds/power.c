/* Preloaded into a process: writes down what it does to files below POWER_ROOT, in order, to POWER_LOG.

   A record is one line, "KIND OFFSET LENGTH PATH", and LENGTH bytes: W written bytes, T the file cut to OFFSET,
   C a new file, M a new folder, U a removed name, R a name changed to the one in the bytes, S synced to the disk.
   A sync of a path that ends with POWER_DROP, or of any with POWER_DROP=/, is neither done nor written down. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define REAL(type, name, ...) ((type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name))

static int log_file = -1;
static const char *root;

__attribute__((constructor)) static void begin(void) {
    root = getenv("POWER_ROOT");
    if (root && getenv("POWER_LOG"))
        log_file = REAL(int, "open", const char *, int, ...)(
            getenv("POWER_LOG"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
}

static int ends_with(const char *path, const char *end) {
    size_t n = strlen(path), m = strlen(end);
    return n >= m && !strcmp(path + n - m, end);
}

static int is_ours(const char *path) {
    /* The shared memory of SQLite's locks is made anew after a restart. */
    return log_file >= 0 && !strncmp(path, root, strlen(root)) && !ends_with(path, "-shm");
}

static void note(char kind, long offset, const void *bytes, size_t length, const char *path) {
    char head[PATH_MAX + 64];
    if (!is_ours(path)) return;
    int n = snprintf(head, sizeof head, "%c %ld %zu %s\n", kind, offset, length, path);
    struct iovec parts[2] = {{head, n}, {(void *)bytes, length}};
    if (REAL(ssize_t, "writev", int, const struct iovec *, int)(log_file, parts, 2) != (ssize_t)(n + length)) abort();
}

static const char *path_of(int file) {
    static __thread char path[PATH_MAX];
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t n = readlink(link, path, sizeof path - 1);
    path[n < 0 ? 0 : n] = 0;
    return ends_with(path, " (deleted)") ? "" : path;
}

static const char *absolute(int folder, const char *path, char *into) {
    if (*path == '/') return path;
    if (folder == AT_FDCWD) { if (!getcwd(into, PATH_MAX)) abort(); }
    else strcpy(into, path_of(folder));
    strcat(strcat(into, "/"), path);
    return into;
}

static int open_at(int folder, const char *path, int flags, mode_t mode) {
    char space[2 * PATH_MAX];
    const char *full = absolute(folder, path, space);
    struct stat found;
    int is_new = (flags & O_CREAT) && stat(full, &found);
    int file = REAL(int, "openat", int, const char *, int, ...)(folder, path, flags, mode);
    if (file >= 0 && is_new) note('C', 0, "", 0, full);
    else if (file >= 0 && (flags & O_TRUNC)) note('T', 0, "", 0, full);
    return file;
}

#define OPEN(name)                                                              \
    int name(const char *path, int flags, ...) {                                \
        va_list rest; va_start(rest, flags);                                    \
        mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0; va_end(rest); \
        return open_at(AT_FDCWD, path, flags, mode);                            \
    }
OPEN(open)
OPEN(open64)
#define OPEN_AT(name)                                                           \
    int name(int folder, const char *path, int flags, ...) {                    \
        va_list rest; va_start(rest, flags);                                    \
        mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0; va_end(rest); \
        return open_at(folder, path, flags, mode);                              \
    }
OPEN_AT(openat)
OPEN_AT(openat64)

ssize_t write(int file, const void *bytes, size_t length) {
    off_t at = lseek(file, 0, SEEK_CUR);
    ssize_t done = REAL(ssize_t, "write", int, const void *, size_t)(file, bytes, length);
    if (done > 0 && at >= 0) note('W', at, bytes, done, path_of(file));
    return done;
}

#define PWRITE(name)                                                                            \
    ssize_t name(int file, const void *bytes, size_t length, off_t at) {                        \
        ssize_t done = REAL(ssize_t, #name, int, const void *, size_t, off_t)(file, bytes, length, at); \
        if (done > 0) note('W', at, bytes, done, path_of(file));                                \
        return done;                                                                            \
    }
PWRITE(pwrite)
PWRITE(pwrite64)

#define TRUNCATE(name)                                       \
    int name(int file, off_t size) {                         \
        int done = REAL(int, #name, int, off_t)(file, size); \
        if (!done) note('T', size, "", 0, path_of(file));    \
        return done;                                         \
    }
TRUNCATE(ftruncate)
TRUNCATE(ftruncate64)

#define SYNC(name)                                                                               \
    int name(int file) {                                                                         \
        const char *path = path_of(file), *drop = getenv("POWER_DROP");                          \
        if (drop && is_ours(path) && (!strcmp(drop, "/") || ends_with(path, drop))) return 0;    \
        note('S', 0, "", 0, path); /* what matters is the order; the real disk stays idle */     \
        return 0;                                                                                \
    }
SYNC(fsync)
SYNC(fdatasync)

int renameat(int from_folder, const char *from, int to_folder, const char *to) {
    char space[2 * PATH_MAX], other[2 * PATH_MAX];
    const char *full = absolute(to_folder, to, other);
    int done = REAL(int, "renameat", int, const char *, int, const char *)(from_folder, from, to_folder, to);
    if (!done) note('R', 0, full, strlen(full), absolute(from_folder, from, space));
    return done;
}
int rename(const char *from, const char *to) { return renameat(AT_FDCWD, from, AT_FDCWD, to); }

int unlinkat(int folder, const char *path, int flags) {
    char space[2 * PATH_MAX];
    int done = REAL(int, "unlinkat", int, const char *, int)(folder, path, flags);
    if (!done) note('U', 0, "", 0, absolute(folder, path, space));
    return done;
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }

int mkdirat(int folder, const char *path, mode_t mode) {
    char space[2 * PATH_MAX];
    int done = REAL(int, "mkdirat", int, const char *, mode_t)(folder, path, mode);
    if (!done) note('M', 0, "", 0, absolute(folder, path, space));
    return done;
}
int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }
