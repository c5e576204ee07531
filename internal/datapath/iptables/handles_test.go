package iptables

import (
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// BenchmarkEveryHandle reads 10,000 chains with two rules each.
func BenchmarkEveryHandle(b *testing.B) {
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		b.Fatal(err)
	}
	var text strings.Builder
	text.WriteString("*nat\n")
	for i := range 10000 {
		fmt.Fprintf(&text, ":KUBE-SVC-%d -\n", i)
	}
	for i := range 10000 {
		fmt.Fprintf(&text, "-A KUBE-SVC-%d -s 10.0.0.1 -j ACCEPT\n-A KUBE-SVC-%[1]d -p tcp -m tcp --dport 80 -j DNAT --to-destination 10.0.0.1:80\n", i)
	}
	text.WriteString("COMMIT\n")
	cmd := exec.Command("iptables-nft-restore")
	cmd.Stdin = strings.NewReader(text.String())
	if out, err := cmd.CombinedOutput(); err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	var t handleReader
	defer t.close()
	for b.Loop() {
		all, err := t.everyHandle(b.Context(), nil, nil)
		if err != nil || len(all) != 10000 {
			b.Fatalf("%d handles, %v", len(all), err)
		}
	}
}
