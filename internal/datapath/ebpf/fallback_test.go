package ebpf_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairway-net/fairway/internal/datapath/ebpf"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// TestFallback: without a bpffs nf_tables serves alone, and the log says so once.
func TestFallback(t *testing.T) {
	r := newRig(t)
	pins, log := filepath.Join(t.TempDir(), "pins"), &strings.Builder{}
	dp, err := ebpf.New(ebpf.Config{Cgroup: r.cgroup, Pins: pins, Log: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	r.dp.Close()
	r.dp = dp
	r.sync(r.front(web.String()))
	r.sync(r.front(web.String()), r.front(web6.String()))
	if got := r.client.Ask("tcp", web, testnet.Patience); got.Outcome != testnet.Answered {
		t.Errorf("without programs: %v", got)
	}
	if n := strings.Count(log.String(), "connect time does not work here"); n != 1 {
		t.Errorf("the log says it %d times: %s", n, log)
	}
	r.onlyConnectTime()
	r.translated("without programs", false, r.client, dial(web))
	if _, err := os.Stat(pins); !os.IsNotExist(err) {
		t.Errorf("a directory of pins is left: %v", err)
	}
}
