package process

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func start(t *testing.T, argv ...string) (Record, string) {
	t.Helper()
	log := filepath.Join(t.TempDir(), "log")
	r, err := Start("sleeper", log, exec.Command(argv[0], argv[1:]...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Kill(); err != nil {
			t.Error(err)
		}
	})
	return r, log
}

func TestKill(t *testing.T) {
	r, _ := start(t, "sleep", "60")
	if !r.Alive() {
		t.Fatal("not alive after Start")
	}
	if size, err := r.Resident(); err != nil || size <= 0 {
		t.Errorf("resident memory is %d, %v", size, err)
	}
	if err := r.Kill(); err != nil {
		t.Fatal(err)
	}
	if r.Alive() {
		t.Error("alive after Kill")
	}
	if err := r.Kill(); err != nil {
		t.Errorf("a second Kill: %v", err)
	}
}

// TestKillAll: all processes end, even if one of them is gone already.
func TestKillAll(t *testing.T) {
	var all []Record
	for range 3 {
		r, _ := start(t, "sleep", "60")
		all = append(all, r)
	}
	all = append(all, Record{}, Record{Name: "gone", PID: all[0].PID, Started: all[0].Started + 1})
	if err := KillAll(all); err != nil {
		t.Fatal(err)
	}
	for _, r := range all {
		if r.Alive() {
			t.Errorf("%+v is alive", r)
		}
	}
}

// TestOtherProcess: a record does not refer to a later process with the same PID. KillAll must not kill that process.
func TestOtherProcess(t *testing.T) {
	r, _ := start(t, "sleep", "60")
	earlier := Record{Name: "earlier", PID: r.PID, Started: r.Started - 1}
	if earlier.Alive() {
		t.Error("a process of another start time counts as alive")
	}
	if err := earlier.Kill(); err != nil {
		t.Error(err)
	}
	if !r.Alive() {
		t.Error("Kill ended a process that is not the one recorded")
	}
	if (Record{}).Alive() {
		t.Error("no process is alive")
	}
}

func TestLog(t *testing.T) {
	r, log := start(t, "sh", "-c", "echo out; echo err >&2; exec sleep 60")
	for r.Alive() {
		data, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(data), "out\n") && strings.Contains(string(data), "err\n") {
			return
		}
	}
	t.Error("the process ended before its output was in the log")
}

// TestEndsAtOnce: Start succeeds for a program that ends at once, and the record is not alive.
func TestEndsAtOnce(t *testing.T) {
	for range 20 {
		r, _ := start(t, "true")
		for end := time.Now().Add(30 * time.Second); r.Alive(); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("true never ends")
			}
		}
	}
}

func TestTerminate(t *testing.T) {
	r, log := start(t, "sh", "-c", "trap 'echo asked; exit' TERM; echo ready; while :; do sleep 0.01; done")
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		if data, err := os.ReadFile(log); err == nil && strings.Contains(string(data), "ready") {
			break
		}
		if time.Now().After(end) {
			t.Fatal("it is never ready")
		}
	}
	if err := r.Terminate(); err != nil || r.Alive() {
		t.Errorf("after Terminate: %v, alive: %v", err, r.Alive())
	}
	if data, err := os.ReadFile(log); err != nil || !strings.Contains(string(data), "asked") {
		t.Errorf("it was not asked to end: %q, %v", data, err)
	}
	if err := r.Terminate(); err != nil {
		t.Errorf("a second Terminate: %v", err)
	}
}

func TestStartFails(t *testing.T) {
	if _, err := Start("nothing", filepath.Join(t.TempDir(), "log"), exec.Command("/nonexistent")); err == nil {
		t.Error("a program that does not exist was started")
	}
}
