package uml

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

//go:embed init.sh
var initScript string

// statusPrefix begins the line in which the init script prints the exit status.
const statusPrefix = "uml-status: "

// Options describe the program to run.
type Options struct {
	Program string // absolute path of the binary
	Args    []string
	Dir     string    // its working directory, absolute
	Env     []string  // "NAME=value"; PATH and HOME are set
	Output  io.Writer // gets its output, line by line
	Virtual bool      // virtual time, see the package's doc
	MemMiB  int       // the kernel's memory; 0: 1024
}

// ErrNoKernel says that there is no kernel to run.
var ErrNoKernel = errors.New("no user-mode Linux kernel [make uml]")

// Kernel returns the path of the kernel: the value of FAIRWAY_UML, or else bin/linux.uml in the module of the working
// directory.
func Kernel() (string, error) {
	path := os.Getenv("FAIRWAY_UML")
	if path == "" {
		root, err := Root()
		if err != nil {
			return "", err
		}
		path = filepath.Join(root, "bin", "linux.uml")
	}
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("%w: %w", ErrNoKernel, err)
	}
	return path, nil
}

// Root returns the directory of the module of the working directory.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", errors.New("no go.mod above the working directory")
		}
		dir = up
	}
}

// Run boots the kernel, runs the program in it, and returns the exit status. An error means that there is no status: no
// kernel was found, it did not boot, it died, or ctx ended.
func Run(ctx context.Context, o Options) (status int, err error) {
	kernel, err := Kernel()
	if err != nil {
		return 0, err
	}
	scratch, err := newScratch()
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(scratch)
	script := filepath.Join(scratch, "init")
	if err := os.WriteFile(script, []byte(initScript+o.command()), 0o700); err != nil {
		return 0, err
	}
	cmd := exec.CommandContext(ctx, kernel, o.kernelArgs(scratch, script)...)
	cmd.Env = []string{"HOME=" + scratch, "TMPDIR=" + o.memDir(scratch), "PATH=" + os.Getenv("PATH")}
	// A process group: the processes in the kernel are processes of the host, too.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	out, in := io.Pipe()
	cmd.Stdout, cmd.Stderr = in, in
	found := make(chan int, 1)
	go func() { found <- copyLines(o.Output, out) }()
	runtime.LockOSThread() // Pdeathsig refers to the thread that starts the process
	err = cmd.Run()
	runtime.UnlockOSThread()
	_ = in.Close()
	status = <-found
	switch {
	case ctx.Err() != nil:
		return 0, fmt.Errorf("run %s in user-mode Linux: %w", filepath.Base(o.Program), ctx.Err())
	case status < 0 && err != nil:
		return 0, fmt.Errorf("run %s in user-mode Linux: it ended without a status: %w", filepath.Base(o.Program), err)
	case status < 0:
		return 0, fmt.Errorf("run %s in user-mode Linux: it ended without a status", filepath.Base(o.Program))
	}
	return status, nil
}

// scratchPrefix begins the names of scratch directories. The owner's pid follows.
const scratchPrefix = "fairway-uml-"

// newScratch makes a scratch directory, and removes the directories of killed owners.
func newScratch() (string, error) {
	old, err := filepath.Glob(filepath.Join(os.TempDir(), scratchPrefix+"*"))
	if err != nil {
		return "", err
	}
	for _, dir := range old {
		pid, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(dir), scratchPrefix), "-")
		if _, err := os.Stat("/proc/" + pid); errors.Is(err, os.ErrNotExist) {
			_ = os.RemoveAll(dir) // another run may remove it first
		}
	}
	return os.MkdirTemp("", fmt.Sprintf("%s%d-", scratchPrefix, os.Getpid()))
}

// memDir returns the directory for the file with the kernel's memory, which has no name. It is in memory if there is
// room for twice the size, because a container's /dev/shm may be tiny.
func (o Options) memDir(scratch string) string {
	const shm = "/dev/shm"
	var fs syscall.Statfs_t
	if err := syscall.Statfs(shm, &fs); err != nil || fs.Bavail*uint64(fs.Bsize) < uint64(o.mem())<<21 {
		return scratch
	}
	return shm
}

// mem returns the kernel's memory in MiB.
func (o Options) mem() int {
	if o.MemMiB == 0 {
		return 1024
	}
	return o.MemMiB
}

func (o Options) kernelArgs(scratch, script string) []string {
	args := []string{
		fmt.Sprintf("mem=%dM", o.mem()), "root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro", "quiet", "panic=-1",
		"uml_dir=" + scratch, "init=" + script, "con=null", "con0=null,fd:1",
	}
	if o.Virtual {
		args = append(args, "time-travel=inf-cpu")
	}
	return args
}

// command returns the end of the init script, which runs the program and prints its status.
func (o Options) command() string {
	var b strings.Builder
	for _, e := range o.Env {
		name, value, _ := strings.Cut(e, "=")
		fmt.Fprintf(&b, "export %s=%s\n", name, quote(value))
	}
	fmt.Fprintf(&b, "cd %s\n%s", quote(o.Dir), quote(o.Program))
	for _, a := range o.Args {
		b.WriteString(" " + quote(a))
	}
	fmt.Fprintf(&b, " 2>&1\necho \"\n%s$?\"\nend\n", statusPrefix)
	return b.String()
}

// quote quotes a word for the shell.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// copyLines copies the output of the kernel until it ends. It returns the status that the script printed, or -1.
func copyLines(to io.Writer, from *io.PipeReader) int {
	status := -1
	r := bufio.NewReader(from)
	for {
		line, err := r.ReadString('\n')
		line = strings.TrimRight(line, "\r\n")
		if number, ok := strings.CutPrefix(line, statusPrefix); ok {
			if n, err := strconv.Atoi(number); err == nil {
				status = n
			}
		} else if line != "" && status < 0 && to != nil && !strings.HasPrefix(line, "Warning: tempdir") {
			_, _ = io.WriteString(to, line+"\n")
		}
		if err != nil {
			return status
		}
	}
}

// Build compiles the tests of the package in the working directory, with a build tag, to a static binary in dir.
func Build(ctx context.Context, tag, dir string) (string, error) {
	path := filepath.Join(dir, tag+".test")
	cmd := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-tags", tag, "-o", path, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the tests: %w: %s", err, out)
	}
	return path, nil
}
