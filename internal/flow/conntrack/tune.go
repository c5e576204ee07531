package conntrack

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/fairway-net/fairway/internal/kernel/sysctl"
	"github.com/fairway-net/fairway/internal/text"
)

// A Tuning has settings of the kernel's table. Zero values leave a setting as it is.
type Tuning struct {
	// Max is the minimum size of the table, in flows. A larger table stays as it is.
	Max int
	// The timeouts of flows without packets.
	TCPEstablished, TCPCloseWait, UDP, UDPStream time.Duration
	TCPBeLiberal                                 bool
}

// Apply sets the values that differ, and logs the changes. It continues after an error: a node without room for more
// flows still carries its flows.
func (t Tuning) Apply(log *slog.Logger) error { return t.apply(log, "/") }

func (t Tuning) apply(log *slog.Logger, root string) error {
	k := sysctls{log: log, root: root}
	k.grow(t.Max)
	k.period("nf_conntrack_tcp_timeout_established", t.TCPEstablished)
	k.period("nf_conntrack_tcp_timeout_close_wait", t.TCPCloseWait)
	k.period("nf_conntrack_udp_timeout", t.UDP)
	k.period("nf_conntrack_udp_timeout_stream", t.UDPStream)
	if t.TCPBeLiberal {
		k.set(parameter("nf_conntrack_tcp_be_liberal"), 1)
	}
	if len(k.failed) == 0 {
		return nil
	}
	return fmt.Errorf("set conntrack settings: %w %s",
		text.OneLine(errors.Join(k.failed...)), sysctl.Advice)
}

func parameter(name string) string { return "proc/sys/net/netfilter/" + name }

// hashSize is the number of the table's buckets. It can be changed only in the host's network namespace.
const hashSize = "proc/sys/net/netfilter/nf_conntrack_buckets"

// perBucket is the number of flows for each bucket of a full table. Since 5.15 the kernel's default is 1. kube-proxy
// uses 4.
const perBucket = 4

// sysctls sets parameters of the kernel.
type sysctls struct {
	log    *slog.Logger
	root   string
	failed []error
}

// grow makes room for a number of flows.
func (k *sysctls) grow(flows int) {
	if flows == 0 {
		return
	}
	if now, err := k.get(parameter("nf_conntrack_max")); err != nil || now < flows {
		k.set(parameter("nf_conntrack_max"), flows)
	}
	if now, err := k.get(hashSize); err == nil && now < flows/perBucket {
		k.set(hashSize, flows/perBucket)
	}
}

func (k *sysctls) period(name string, d time.Duration) {
	if seconds := int(d / time.Second); seconds > 0 {
		k.set(parameter(name), seconds)
	}
}

func (k *sysctls) get(path string) (int, error) {
	data, err := os.ReadFile(filepath.Join(k.root, path))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(data)))
}

// set writes a parameter if it has another value.
func (k *sysctls) set(path string, want int) {
	now, err := k.get(path)
	if err == nil && now == want {
		return
	}
	if err == nil {
		err = sysctl.WriteFile(filepath.Join(k.root, path), strconv.Itoa(want))
	}
	if err != nil {
		var p *os.PathError
		if errors.As(err, &p) {
			err = p.Err
		}
		k.failed = append(k.failed, fmt.Errorf("%s to %d: %w", filepath.Base(path), want, err))
		return
	}
	k.log.Info("set conntrack setting of the node", "setting", filepath.Base(path), "from", now, "to", want)
}
