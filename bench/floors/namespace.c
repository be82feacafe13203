/*
 * The floor under "create a sandbox": all of the kernel's work that no sandbox with an overlay root can do without.
 * clone3 of every namespace, 65,536 ids of its own, an overlay on fresh directories, pivot_root, exec of /bin/true.
 *
 *     namespace LOWERDIR SCRATCH
 *
 * LOWERDIR is overlayfs' own notation (several layers with colons between them), SCRATCH an empty directory. For every
 * line on standard input it does this once and prints the microseconds from clone3 to the end of the child.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { FIRST_ID = 3000000, IDS = 65536 };

static void die(const char *what)
{
    fprintf(stderr, "namespace: %s: %s\n", what, strerror(errno));
    _exit(70);
}

static void check(int result, const char *what)
{
    if (result < 0)
        die(what);
}

static void put(pid_t child, const char *file, const char *text)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", child, file);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    check(fd, path);
    if (write(fd, text, strlen(text)) < 0)
        die(path);
    close(fd);
}

static void inside(const char *lower, const char *base, int go)
{
    char byte, options[8192], merged[512], procfs[600];
    if (read(go, &byte, 1) != 1)
        die("waiting for the maps");
    check(setresgid(0, 0, 0), "setresgid");
    check(setresuid(0, 0, 0), "setresuid");
    check(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), "making mounts private");
    snprintf(merged, sizeof merged, "%s/merged", base);
    int used = snprintf(options, sizeof options, "lowerdir=%s,upperdir=%s/upper,workdir=%s/work,userxattr", lower, base, base);
    if (used >= (int)sizeof options) {
        errno = E2BIG;
        die("the overlay's options");
    }
    check(mount("overlay", merged, "overlay", 0, options), "mounting the overlay");
    snprintf(procfs, sizeof procfs, "%s/proc", merged);
    check(mount("proc", procfs, "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL), "mounting /proc");
    check(chdir(merged), "chdir");
    check((int)syscall(SYS_pivot_root, ".", "."), "pivot_root");
    check(umount2(".", MNT_DETACH), "detaching the old root");
    check(chdir("/"), "chdir /");
    char *arguments[] = {"true", NULL}, *environment[] = {NULL};
    execve("/bin/true", arguments, environment);
    die("exec /bin/true");
}

static double once(const char *lower, const char *scratch, unsigned number)
{
    char base[256], path[300], map[64];
    struct timespec begun, ended;
    int go[2], status;

    snprintf(base, sizeof base, "%s/%u", scratch, number);
    clock_gettime(CLOCK_MONOTONIC, &begun);
    check(mkdir(base, 0755), "mkdir");
    const char *parts[] = {"upper", "work", "merged"};
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", base, parts[i]);
        check(mkdir(path, 0755), path);
        check(chown(path, FIRST_ID, FIRST_ID), path);
    }
    check(pipe2(go, O_CLOEXEC), "pipe2");
    struct clone_args arguments = {
        .flags = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP,
        .exit_signal = SIGCHLD,
    };
    pid_t child = (pid_t)syscall(SYS_clone3, &arguments, sizeof arguments);
    check(child, "clone3");
    if (child == 0)
        inside(lower, base, go[0]);
    snprintf(map, sizeof map, "0 %d %d", FIRST_ID, IDS);
    put(child, "uid_map", map);
    put(child, "gid_map", map);
    if (write(go[1], "", 1) != 1)
        die("letting the child go");
    check(waitpid(child, &status, 0), "waitpid");
    clock_gettime(CLOCK_MONOTONIC, &ended);
    close(go[0]);
    close(go[1]);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        fprintf(stderr, "namespace: the child ended with status %#x\n", status);
        exit(70);
    }
    return (ended.tv_sec - begun.tv_sec) * 1e6 + (ended.tv_nsec - begun.tv_nsec) / 1e3;
}

int main(int count, char **arguments)
{
    char line[16];
    if (count != 3) {
        fprintf(stderr, "usage: namespace LOWERDIR SCRATCH\n");
        return 64;
    }
    for (unsigned number = 0; fgets(line, sizeof line, stdin); number++) {
        printf("%.1f\n", once(arguments[1], arguments[2], number));
        fflush(stdout);
    }
    return 0;
}
