package cni

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/fairway-net/fairway/internal/ipc/isolate"
	"golang.org/x/sys/unix"
)

// changes reports whether a system call of a traced thread, which is about to enter it,
// changes something: writes or makes or removes a file, or asks netlink for a change.
func changes(tid int) bool {
	var regs unix.PtraceRegs
	if unix.PtraceGetRegs(tid, &regs) != nil {
		return false
	}
	switch regs.Orig_rax {
	case unix.SYS_WRITE:
		return regs.Rdx != 8 // the Go runtime wakes its poller with 8 bytes
	case unix.SYS_OPENAT:
		return regs.Rdx&unix.O_EXCL != 0
	case unix.SYS_UNLINKAT, unix.SYS_UNLINK, unix.SYS_RENAME, unix.SYS_RENAMEAT, unix.SYS_MKDIR, unix.SYS_MKDIRAT:
		return true
	case unix.SYS_SENDTO:
		var header [8]byte
		if _, err := unix.PtracePeekData(tid, uintptr(regs.Rsi), header[:]); err != nil {
			return false
		}
		return header[4] >= unix.RTM_BASE && header[4]%4 != unix.RTM_GETLINK%4
	}
	return false
}

// killedAt runs the plugin and kills it before its number-th change. It reports whether it
// came so far.
func (n *node) killedAt(number int, verb, conf string, p *pod) (killed bool) {
	n.t.Helper()
	stdin := filepath.Join(n.t.TempDir(), "conf")
	if err := os.WriteFile(stdin, []byte(conf), 0o600); err != nil {
		n.t.Fatal(err)
	}
	cmd := n.command(verb, "", p)
	err := n.do(func() error { // on one thread, which is the tracer
		in, err := os.Open(stdin)
		if err != nil {
			return err
		}
		defer in.Close()
		process, err := os.StartProcess(cmd.Path, cmd.Args, &os.ProcAttr{
			Env: cmd.Env, Files: []*os.File{in, nil, os.Stderr}, Sys: &syscall.SysProcAttr{Ptrace: true},
		})
		if err != nil {
			return err
		}
		killed, err = trace(process.Pid, number)
		return err
	})
	if err != nil {
		n.t.Fatalf("trace %s: %v", verb, err)
	}
	return killed
}

// trace lets a process that has just been started run until it ends or is killed before its
// number-th change.
func trace(pid, number int) (killed bool, err error) {
	var status unix.WaitStatus
	if _, err := unix.Wait4(pid, &status, unix.WALL, nil); err != nil {
		return false, err
	}
	if err := unix.PtraceSetOptions(pid, unix.PTRACE_O_TRACECLONE|unix.PTRACE_O_TRACESYSGOOD|unix.PTRACE_O_EXITKILL); err != nil {
		return false, err
	}
	tid, deliver, inside := pid, 0, map[int]bool{}
	for seen := 0; ; {
		// A thread that was killed meanwhile is no error: it is waited for below.
		if err := unix.PtraceSyscall(tid, deliver); err != nil && err != unix.ESRCH {
			return killed, err
		}
		if tid, err = unix.Wait4(-1, &status, unix.WALL|unix.WNOTHREAD, nil); err != nil {
			return killed, fmt.Errorf("wait: %w", err)
		}
		deliver = 0
		switch {
		case tid == pid && (status.Exited() || status.Signaled()):
			return killed, nil
		case !status.Stopped():
		case status.StopSignal() == unix.SIGTRAP|0x80:
			if inside[tid] = !inside[tid]; inside[tid] && !killed && changes(tid) {
				if seen++; seen == number {
					killed = true
					if err := unix.Kill(pid, unix.SIGKILL); err != nil {
						return killed, err
					}
				}
			}
		case status.StopSignal() != unix.SIGTRAP && status.StopSignal() != unix.SIGSTOP:
			deliver = int(status.StopSignal())
		}
	}
}

// TestKilledAtEachStep kills ADD and DEL before each of their changes, by number, of a pod that policies isolate and that has a
// hostPort and limits. Whatever was made, the next ADD of another pod works beside it, and DEL, or GC where the runtime has
// forgotten the pod, leaves nothing, and has told the agent that the container is gone.
func TestKilledAtEachStep(t *testing.T) {
	n := newNode(t)
	list := n.list("1.1.0", "fairway", "10.244.1.0/24", "fd00:10:244:1::/64")
	socket := filepath.Join(t.TempDir(), "policy.sock")
	conf := fmt.Sprintf(`{"cniVersion":"1.1.0","name":"fairway","type":"fairway-cni","capabilities":{"portMappings":true,"bandwidth":true},"policySocket":%q,`+
		`"runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}],"bandwidth":{"ingressRate":1000000,"egressRate":1000000}},`+
		`"ipam":{"type":"host-local","dataDir":%q,"ranges":[[{"subnet":"10.244.1.0/24"}],[{"subnet":"fd00:10:244:1::/64"}]]}}`, socket, n.stateDir)
	var mu sync.Mutex
	isolated := map[string]bool{} // containers
	agent := newPolicyAgent(t, socket, func(r isolate.Request) (string, bool) {
		mu.Lock()
		defer mu.Unlock()
		switch r.Command { // none: it was killed before it asked
		case isolate.Add:
			isolated[r.Container] = true
		case isolate.Delete:
			delete(isolated, r.Container)
		}
		return "", true
	})
	defer agent.end()
	none := conf[:len(conf)-1] + `,"cni.dev/valid-attachments":[]}`
	heal := func(verb string, number int, p *pod) {
		t.Helper()
		if number%3 == 0 {
			other := newPod(t)
			n.mustAdd(list, other)
			if err := n.check(list, other); err != nil {
				t.Errorf("%s killed before change %d: CHECK of the next pod: %v", verb, number, err)
			}
			if err := n.del(list, other); err != nil {
				t.Errorf("%s killed before change %d: DEL of the next pod: %v", verb, number, err)
			}
			other.close()
		}
		var err error
		if number%2 == 0 {
			_, err = n.call("DEL", conf, p)
		} else {
			_, err = n.call("GC", none, nil)
		}
		mu.Lock()
		defer mu.Unlock()
		if left, ports := n.left(), n.records(); err != nil || left != "" || len(isolated)+len(ports) > 0 {
			t.Fatalf("%s killed before change %d left behind (%v):\n%sports %v, and the agent isolates %v", verb, number, err, left, ports, isolated)
		}
		p.close()
	}
	steps := map[string]int{}
	for _, verb := range []string{"ADD", "DEL"} {
		for number := 1; ; number++ {
			p := newPod(t)
			if verb == "DEL" {
				if _, err := n.call("ADD", conf, p); err != nil || len(n.records()) != 1 {
					t.Fatal(err, n.records())
				}
			}
			killed := n.killedAt(number, verb, conf, p)
			heal(verb, number, p)
			if !killed {
				break
			}
			steps[verb] = number
		}
	}
	if steps["ADD"] < 20 || steps["DEL"] < 3 {
		t.Errorf("steps %v: ADD makes more changes, and DEL too", steps)
	}
	t.Logf("steps: %v", steps)
}
