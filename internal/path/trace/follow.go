package trace

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
)

// Follow returns the way that follows from the record.
func Follow(r Record) Way {
	w := Way{NotWatched: r.NotWatched}
	f := follower{Record: r}
	hops, repeats := f.hops(false)
	w.Repeats = repeats
	w.Hops = f.order(hops)
	f.way = w.Hops
	replies, _ := f.hops(true)
	w.Reply = f.back(w.Hops, replies)
	w.End = f.end(w)
	w.Findings = f.findings(w)
	if len(w.Findings) > 0 && w.End.Class == LostAfter && w.End.Next == "" && slices.Contains(decisions, w.Findings[0].Code) {
		w.End.Class = DroppedBy // the node's state says it as well as the kernel's reason would
	}
	return w
}

// decisions are findings about the node itself that leave no other explanation for a packet that went no further there.
var decisions = []Code{NoRoute, ForwardingOff, ReversePath, TooLarge}

// back puts the answer's hops in order: those that mirror the way, backwards, and then ICMP errors by TTL. Other hops are
// answers to other clients.
func (f follower) back(hops, replies []Hop) (way []Hop) {
	slices.SortStableFunc(replies, func(a, b Hop) int {
		return cmp.Or(-cmp.Compare(a.TTL, b.TTL), strings.Compare(a.Node, b.Node))
	})
	for _, h := range slices.Backward(hops) {
		mirrors := func(r Hop) bool {
			return r.Node == h.Node && r.Before.Src == h.After.Dst && r.Before.Dst == h.After.Src
		}
		if i := slices.IndexFunc(replies, mirrors); i >= 0 {
			way = append(way, replies[i])
			replies = slices.Delete(replies, i, i+1)
		}
	}
	icmp := func(r Hop) bool { return r.Before.Src.Port() == 0 }
	return append(way, slices.DeleteFunc(replies, func(r Hop) bool { return !icmp(r) })...)
}

type follower struct {
	Record
	way []Hop
}

func (f follower) ours(r Rule) bool {
	if f.Ours != nil {
		return f.Ours(r)
	}
	return Ours(r)
}

// Ours reports whether a rule is in a table of Fairway.
func Ours(r Rule) bool { return strings.HasPrefix(r.Table, "fairway") }

// hops groups the traces of each pass. A repeated packet counts, and its passes are left out.
func (f follower) hops(reply bool) (hops []Hop, repeats int) {
	type passKey struct {
		node string
		pass int
	}
	type packetKey struct {
		node string
		Tuple
		seq uint32
		ttl uint8
	}
	at, seen := map[passKey]int{}, map[packetKey]bool{}
	for _, o := range f.Observations {
		if o.Rule == nil || o.Packet == nil || o.Reply != reply {
			continue
		}
		k := passKey{o.Node, o.Pass}
		i, ok := at[k]
		if !ok {
			t := Tuple{o.Packet.Src, o.Packet.Dst}
			p := packetKey{o.Node, t, o.Packet.Seq, o.Packet.TTL}
			if i = len(hops); seen[p] {
				repeats++
				i = -1
			} else {
				seen[p] = true
				hops = append(hops, Hop{Node: o.Node, Before: t, After: t, In: o.Packet.In, TTL: o.Packet.TTL})
			}
			at[k] = i
		}
		if i >= 0 {
			hops[i].Steps = append(hops[i].Steps, o)
			hops[i].Out = cmp.Or(o.Packet.Out, hops[i].Out)
			if o.Rule.Hook != "output" {
				hops[i].After = Tuple{o.Packet.Src, o.Packet.Dst}
			}
		}
	}
	for i := range hops {
		f.confirm(&hops[i], reply)
	}
	return hops, repeats
}

// confirm completes a hop with its conntrack entry. A new entry is in the table after the last hook only.
func (f follower) confirm(h *Hop, reply bool) {
	for _, o := range f.Observations {
		if o.Flow == nil || o.Node != h.Node {
			continue
		}
		if !reply && o.Flow.Orig == h.Before {
			h.Flow, h.Left = o.Flow, true
			h.Known = h.Known || o.Flow.Event != "new" && !f.created(o.Node, o.Flow.ID)
			h.After = Tuple{o.Flow.Reply.Dst, o.Flow.Reply.Src}
		}
		if reply && o.Flow.Reply == h.Before {
			h.Flow = o.Flow
			h.After = Tuple{o.Flow.Orig.Dst, o.Flow.Orig.Src}
		}
	}
	if !reply && h.Flow == nil {
		f.dropped(h)
	}
	if len(h.Steps) > 0 && reply {
		h.Left = !slices.ContainsFunc(h.Steps, func(o Observation) bool { return o.Rule.Ends() })
	}
}

// dropped completes the hop of a packet that the kernel freed before conntrack confirmed it: the freed packet shows the
// translation.
func (f follower) dropped(h *Hop) {
	for _, o := range f.Observations {
		if o.Drop != nil && !o.Drop.Pod && !o.Reply && o.Node == h.Node && o.Packet.Src == h.Before.Src {
			h.After = Tuple{o.Packet.Src, o.Packet.Dst}
		}
	}
}

func (f follower) created(node string, id uint32) bool {
	return slices.ContainsFunc(f.Observations, func(o Observation) bool {
		return o.Node == node && o.Flow != nil && o.Flow.ID == id && o.Flow.Event == "new"
	})
}

// order puts the hops in the order of the packet. The next hop has the addresses with which the packet left, and a
// smaller TTL. A relay begins again: its packet goes from the same node to an endpoint.
func (f follower) order(hops []Hop) (way []Hop) {
	slices.SortStableFunc(hops, func(a, b Hop) int {
		return cmp.Or(-cmp.Compare(f.first(a), f.first(b)), -cmp.Compare(a.TTL, b.TTL), strings.Compare(a.Node, b.Node))
	})
	used := make([]bool, len(hops))
	for len(way) < len(hops) {
		next := slices.Index(used, false)
		if n := len(way); n > 0 {
			if i := f.next(hops, used, way[n-1]); i >= 0 {
				next = i
			} else if f.Relayed || way[n-1].Flow != nil && way[0].Before.Src == f.Heard.Local {
				break // the rest are packets of other clients
			}
		}
		used[next] = true
		way = append(way, hops[next])
	}
	return way
}

// next returns the index of the hop that follows another one, or -1. A forwarded packet has a smaller TTL there. A node's
// own packet has still the socket's.
func (f follower) next(hops []Hop, used []bool, last Hop) int {
	own := last.Steps[0].Rule.Hook == "output"
	for i, h := range hops {
		if !used[i] && h.Before == last.After && (h.TTL < last.TTL || h.Node == last.Node || own && h.TTL == last.TTL) {
			return i
		}
	}
	if !f.Relayed || last.Before.Dst != f.To {
		return -1
	}
	relay := -1 // the first connection that the node makes to an endpoint
	for i, h := range hops {
		if !used[i] && h.Node == last.Node && h.Steps[0].Rule.Hook == "output" && slices.Contains(f.Endpoints, h.Before.Dst) &&
			(relay < 0 || h.Steps[0].Time.Before(hops[relay].Steps[0].Time)) {
			relay = i
		}
	}
	return relay
}

// first is the larger, the more likely a hop is the packet's first: it has the client's address, or still the address that
// the client called. The node of the client's socket comes before all.
func (f follower) first(h Hop) int {
	switch {
	case h.Before.Src == f.Heard.Local && h.Steps[0].Rule.Hook == "output":
		return 3 // other nodes get it with the same addresses and TTL; in mode ebpf it has the endpoint's address here
	case h.Before.Dst != f.To:
		return 0
	case h.Before.Src == f.Heard.Local:
		return 2
	}
	return 1
}

// end says how the way ends. The first cause counts.
func (f follower) end(w Way) End {
	for _, hops := range [][]Hop{w.Hops, w.Reply} {
		for _, h := range hops {
			for _, o := range h.Steps {
				if o.Rule.Ends() && !(o.Reply && f.Heard.Outcome == Answered) {
					return f.ruled(h, o)
				}
			}
		}
	}
	switch f.Heard.Outcome {
	case Answered:
		return End{Class: Delivered, Node: lastNode(w.Hops)}
	case Refused, Reset:
		end := End{Class: RefusedBy, Node: lastNode(w.Hops)}
		if d := f.drop(false); d != nil {
			end.Node, end.Drop = d.Node, d.Drop
		}
		return end
	}
	if d := f.drop(false); d != nil {
		return End{Class: DroppedBy, Node: d.Node, Drop: d.Drop, Link: d.Packet.In, Hook: f.hookOf(w.Hops, d.Node)}
	}
	if d := f.drop(true); d != nil {
		return End{Class: ReplyLost, Node: d.Node, Drop: d.Drop, Link: d.Packet.In, Reply: true}
	}
	return f.silent(w)
}

// ruled is the end by a rule.
func (f follower) ruled(h Hop, o Observation) End {
	end := End{Class: DroppedBy, Node: h.Node, Hook: o.Rule.Hook, Rule: o.Rule, Foreign: !f.ours(*o.Rule), Reply: o.Reply}
	if o.Reply {
		end.Class = ReplyLost
	} else if f.Heard.Outcome == Refused || strings.Contains(o.Rule.Text, "reject") {
		end.Class = RefusedBy
	}
	if d := f.drop(o.Reply); d != nil && d.Node == h.Node && d.Drop.Reason == "NETFILTER_DROP" {
		end.Drop = d.Drop
	}
	return end
}

// silent is the end of a probe without an answer that nothing visibly dropped.
func (f follower) silent(w Way) End {
	if len(w.Hops) == 0 {
		if f.Heard.Outcome == Unreachable || f.Heard.Outcome == Failed || f.Heard.Outcome == TooBig {
			return End{Class: NotSent, Node: f.Sender}
		}
		if len(f.NotWatched) > 0 {
			return End{Class: NotLooked, Node: f.Sender}
		}
		return End{Class: NotSent, Node: f.Sender}
	}
	last := w.Hops[len(w.Hops)-1]
	end := End{Node: last.Node, Hook: last.Hook(), Link: last.Out}
	home := f.home(last)
	switch {
	case !last.Left:
		end.Class = LostAfter
	case home == last.Node && len(w.Reply) > 0:
		end.Class, end.Reply, end.Node = ReplyLost, true, w.Reply[len(w.Reply)-1].Node
	case home == last.Node:
		end.Class = Unanswered
	case home != "":
		end.Class, end.Next = LostAfter, home
	default:
		end.Class = NotLooked
		if len(f.NotWatched) == 0 {
			end.Class = LostAfter // it left for an address that no node has
		}
	}
	return end
}

// home returns the watched node that has the endpoint to which the packet goes. The node that has the address itself comes
// before a node that only has a link to it.
func (f follower) home(h Hop) (node string) {
	for _, o := range f.Observations {
		if o.State == nil {
			continue
		}
		for _, e := range o.State.Endpoints {
			switch {
			case e.Addr != h.After.Dst.Addr():
			case e.Link == "":
				return o.Node
			case node == "" || o.Node == h.Node:
				node = o.Node
			}
		}
	}
	return node
}

// drop returns the first packet of a direction that the kernel freed, if that explains a missing answer.
func (f follower) drop(reply bool) *Observation {
	for i, o := range f.Observations {
		if o.Drop == nil || o.Reply != reply || o.Packet == nil || strings.Contains(o.Packet.Flags, "RST") { // a reset is an end, not a way
			continue
		}
		if !reply && f.isClient(o.Packet.Src) || reply && f.isClient(o.Packet.Dst) {
			return &f.Observations[i]
		}
	}
	return nil
}

// isClient reports whether the client had this address somewhere on the way.
func (f follower) isClient(a netip.AddrPort) bool {
	if len(f.way) == 0 {
		return !f.Heard.Local.IsValid() || a == f.Heard.Local
	}
	return slices.ContainsFunc(f.way, func(h Hop) bool { return h.Before.Src == a || h.After.Src == a })
}

func (f follower) hookOf(hops []Hop, node string) string {
	for _, h := range hops {
		if h.Node == node {
			return h.Hook()
		}
	}
	return ""
}

func lastNode(hops []Hop) string {
	if len(hops) == 0 {
		return ""
	}
	return hops[len(hops)-1].Node
}
