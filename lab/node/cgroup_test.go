package node

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// TestRemoveCgroupsStopped: RemoveCgroups waits for a process that ends late. Time in which RemoveCgroups itself is
// stopped, as on a busy machine, does not count.
func TestRemoveCgroupsStopped(t *testing.T) {
	const other = "FAIRWAY_TEST_REMOVE"
	if cgroup := os.Getenv(other); cgroup != "" {
		fmt.Println("begun")
		if err := RemoveCgroups(cgroup); err != nil {
			t.Fatal(err)
		}
		return
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root: it makes a cgroup")
	}
	_, unified, err := hierarchies()
	if err != nil || unified == "" {
		t.Fatalf("there is no hierarchy of cgroups of version 2: %v", err)
	}
	cgroup := fmt.Sprintf("/fairway-test-%d", os.Getpid())
	dir := filepath.Join(unified, cgroup)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(dir)
	member := exec.Command("sleep", "60")
	if err := member.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = member.Process.Kill(); _ = member.Wait() }()
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), fmt.Append(nil, member.Process.Pid), 0); err != nil {
		t.Fatal(err)
	}
	remover := exec.Command(os.Args[0], "-test.run=^TestRemoveCgroupsStopped$")
	remover.Env = append(os.Environ(), other+"="+cgroup)
	out, err := remover.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := remover.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	lines.Scan()
	_ = remover.Process.Signal(syscall.SIGSTOP)
	<-time.After(5500 * time.Millisecond)
	_ = remover.Process.Signal(syscall.SIGCONT)
	<-time.After(200 * time.Millisecond) // it retries while the process exists
	_ = member.Process.Kill()
	said := ""
	for lines.Scan() {
		said += lines.Text() + "\n"
	}
	if err := remover.Wait(); err != nil {
		t.Errorf("%v:\n%s", err, said)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("the cgroup is there")
	}
}
