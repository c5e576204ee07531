package ebpf_test

import (
	"encoding/binary"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	cilium "github.com/cilium/ebpf"

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

// TestFull: nf_tables carries a Service for which the maps have no room, and the log says so once.
func TestFull(t *testing.T) {
	r := newRig(t)
	log := &strings.Builder{}
	dp, err := ebpf.New(ebpf.Config{Cgroup: r.cgroup, Pins: filepath.Join(bpffs(t, r.cgroup), "fairway"), Log: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	r.dp.Close()
	r.dp = dp
	first := r.front("10.96.0.2:80")
	first.Internal.Endpoints = first.Internal.Endpoints[:1]
	r.sync(first)
	m, err := cilium.LoadPinnedMap(r.pin("endpoints"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	keys, values := make([][20]byte, m.MaxEntries()-1), make([][40]byte, m.MaxEntries()-1)
	for i := range keys {
		binary.NativeEndian.PutUint32(keys[i][:], uint32(i))
	}
	if int(m.KeySize()) != len(keys[0]) || int(m.ValueSize()) != len(values[0]) {
		t.Fatalf("the elements have keys of %d bytes and values of %d", m.KeySize(), m.ValueSize())
	}
	if _, err := m.BatchUpdate(keys, values, nil); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		r.sync(first, r.front(web.String()))
		r.sync(first)
	}
	r.sync(first, r.front(web.String()))
	if got := r.client.Ask("tcp", web, testnet.Patience); got.Outcome != testnet.Answered {
		t.Errorf("with a full map: %v", got)
	}
	if n := strings.Count(log.String(), "the maps of connect time are full"); n != 1 {
		t.Errorf("the log says it %d times: %s", n, log)
	}
	r.onlyConnectTime()
	r.translated("a Service without room", false, r.client, dial(web))
	r.translated("the Service that was first", true, r.client, dial(first.Addr))
}
