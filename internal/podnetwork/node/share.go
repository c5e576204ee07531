package node

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/podnetwork/plan"
)

// DefaultFragments is the default of Config.Fragments: about 800 datagrams of 4,000 bytes a second. In fragmentSeconds a
// pod then fills less than half of fragmentMemory: 2.5 KB for each fragment of a frame of 1,500 bytes.
const DefaultFragments = 2500

const (
	// fragmentMemory is the least memory for fragments, in bytes. The kernel uses it only while datagrams are incomplete.
	fragmentMemory = 64 << 20
	// fragmentSeconds is how long the kernel waits for the rest of a datagram, if nobody has changed its default.
	fragmentSeconds = 3
)

// A roomSetting is a setting of the kernel's memory for fragments. own is the kernel's default.
type roomSetting struct {
	name       string
	value, own int
	replace    func(now int) bool
}

var roomSettings = []roomSetting{
	{"ipv4/ipfrag_high_thresh", fragmentMemory, 4 << 20, func(now int) bool { return now < fragmentMemory }},
	{"netfilter/nf_conntrack_frag6_high_thresh", fragmentMemory, 4 << 20, func(now int) bool { return now < fragmentMemory }},
	{"ipv4/ipfrag_time", fragmentSeconds, 30, func(now int) bool { return now == 30 }},
	{"netfilter/nf_conntrack_frag6_timeout", fragmentSeconds, 60, func(now int) bool { return now == 60 }},
}

// restoreFragments gives the settings that roomForFragments has written the kernel's defaults.
func restoreFragments() (failed error) {
	for _, s := range roomSettings {
		if text, err := readSysctl(s.name); err == nil && text == strconv.Itoa(s.value) {
			failed = errors.Join(failed, setSysctl(s.name, strconv.Itoa(s.own)))
		}
	}
	return failed
}

// roomForFragments gives the node memory for the shares of several pods. Without a limit it changes nothing.
func (n *Network) roomForFragments() error {
	if n.Fragments == 0 {
		return nil
	}
	var failed error
	for _, s := range roomSettings {
		text, err := readSysctl(s.name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // without IPv6, or before the first rule that needs connection tracking
		}
		now, wrong := strconv.Atoi(text)
		if err == nil && wrong == nil && s.replace(now) {
			err = setSysctl(s.name, strconv.Itoa(s.value))
		}
		failed = errors.Join(failed, err, wrong)
	}
	return failed
}

// overShare returns a problem for each pod whose fragments were dropped in the last minutes.
func (n *Network) overShare(ctx context.Context, p *plan.Plan) (all []plan.Problem) {
	if n.OverShare == nil {
		n.OverShare = func(string) {}
	}
	if n.Fragments == 0 {
		n.OverShare("")
		return nil
	}
	links := map[int]bool{}
	err := n.rules.table.Elements(ctx, "fragments-dropped", func(e nft.Element) error {
		links[int(binary.NativeEndian.Uint32(e.Key))] = true
		return nil
	})
	if err != nil {
		n.Log.Debug("cannot read the pods that exceed their share", "err", err)
		return nil
	}
	var pods []string
	for _, addr := range podsOf(p.OwnPods, links) {
		pods = append(pods, addr.String())
		all = append(all, plan.Problem{Reason: plan.ReasonOverShare, Message: fmt.Sprintf("pod %v sends more than %d IP fragments a second: the others are dropped, so that other pods' datagrams are put together [a smaller MTU of the pod's own tunnel, smaller datagrams, or --pod-fragments]", addr, n.Fragments)})
	}
	message := ""
	if len(pods) > 0 {
		message = fmt.Sprintf("fragments of pods are dropped, more than %d a second of each: %s [a smaller MTU of the pod's own tunnel, smaller datagrams, or --pod-fragments]", n.Fragments, strings.Join(pods, ", "))
	}
	n.OverShare(message)
	return all
}

// podsOf returns one address of each pod behind the links, sorted.
func podsOf(pods map[netip.Addr]int, links map[int]bool) (all []netip.Addr) {
	first := map[int]netip.Addr{}
	for addr, link := range pods {
		if was, ok := first[link]; links[link] && (!ok || addr.Less(was)) {
			first[link] = addr
		}
	}
	for _, addr := range first {
		all = append(all, addr)
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return all
}
