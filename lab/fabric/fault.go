package fabric

import (
	"errors"
	"fmt"
	"strings"

	"github.com/vishvananda/netlink"
)

// Directions in which Cut drops packets, seen from the machine that is cut off.
const (
	Both = ""
	In   = "in"
	Out  = "out"
)

// cutTable returns the name of the nft table that cuts a machine off.
func cutTable(name string) string { return "cut-" + name }

// Cut drops packets from and to a machine on the switch. The machine's link stays up, as if a switch in between failed.
// If peers are given, Cut drops only packets between the machine and its peers, which are nodes or the control plane.
// It replaces an earlier Cut of the same machine.
func (f Fabric) Cut(name string, direction string, peers ...string) error {
	text, err := f.cutRules(name, direction, peers)
	if err != nil {
		return err
	}
	return f.nft(text)
}

// cutRules returns the nft text of Cut. The rules drop packets where they leave the switch, so that only one receiver
// misses a broadcast.
//
//	node-2 ── ingress ─┐        ┌─ egress ── node-3     from node-2: its address is the source
//	node-2 ── egress ──┴─ br0 ──┘                        to node-2: the peer's address is
func (f Fabric) cutRules(name, direction string, peers []string) (string, error) {
	var b strings.Builder
	table := cutTable(name)
	fmt.Fprintf(&b, "add table netdev %s\nflush table netdev %s\ndelete table netdev %s\nadd table netdev %s\n", table, table, table, table)
	chain := func(id, hook, port, rule string) {
		fmt.Fprintf(&b, "add chain netdev %s %s { type filter hook %s device \"%s\" priority 0; }\nadd rule netdev %s %s %s\n",
			table, id, hook, port, table, id, rule)
	}
	if len(peers) == 0 {
		if direction != Out {
			chain("to", "egress", name, "drop")
		}
		if direction != In {
			chain("from", "ingress", name, "drop")
		}
		return b.String(), nil
	}
	own, err := f.mac(name)
	if err != nil {
		return "", err
	}
	for i, peer := range peers {
		mac, err := f.mac(peer)
		if err != nil {
			return "", err
		}
		if direction != In {
			chain(fmt.Sprintf("to-%s", peer), "egress", peer, "ether saddr "+own+" drop")
		}
		if direction == Out {
			continue
		}
		if i == 0 {
			chain("to", "egress", name, "ether saddr "+mac+" drop")
		} else {
			fmt.Fprintf(&b, "add rule netdev %s to ether saddr %s drop\n", table, mac)
		}
	}
	return b.String(), nil
}

// IsCut reports whether a Cut of the machine is in force.
func (f Fabric) IsCut(name string) (bool, error) {
	var out []byte
	err := f.Do(Switch, func() (err error) {
		out, err = runNFT("", "list", "tables", "netdev")
		return err
	})
	if err != nil {
		return false, fmt.Errorf("list what is cut off: %w: %s", err, out)
	}
	return strings.Contains(string(out), "table netdev "+cutTable(name)+"\n"), nil
}

// Mend ends the Cut of a machine.
func (f Fabric) Mend(name string) error {
	return f.nft(fmt.Sprintf("add table netdev %s\ndelete table netdev %s\n", cutTable(name), cutTable(name)))
}

func (f Fabric) nft(text string) error {
	return f.Do(Switch, func() error {
		if out, err := runNFT(text, "-f", "-"); err != nil {
			return fmt.Errorf("nft on the switch: %w: %s", err, strings.TrimSpace(string(out)))
		}
		return nil
	})
}

// mac returns the link address of a machine.
func (f Fabric) mac(name string) (mac string, err error) {
	err = f.with(name, func(h *netlink.Handle) error {
		link, err := h.LinkByName("eth0")
		if err != nil {
			return fmt.Errorf("find eth0 of %s: %w", name, err)
		}
		mac = link.Attrs().HardwareAddr.String()
		return nil
	})
	return mac, err
}

// SetLink sets the switch's end of a machine's link up or down, so that the machine's eth0 gains or loses its carrier.
func (f Fabric) SetLink(name string, isUp bool) error {
	return f.with(Switch, func(h *netlink.Handle) error {
		link, err := h.LinkByName(name)
		if err != nil {
			return fmt.Errorf("find the link of %s: %w", name, err)
		}
		set := h.LinkSetDown
		if isUp {
			set = h.LinkSetUp
		}
		if err := set(link); err != nil {
			return fmt.Errorf("set the link of %s: %w", name, err)
		}
		return nil
	})
}

// A Port is the state of the switch's end of a machine's link.
type Port string

// The states of a Port.
const (
	PortUp   Port = "up"
	PortDown Port = "down"
	NoPort   Port = "none" // the machine has no link
)

// Port returns the state of a machine's link.
func (f Fabric) Port(name string) (port Port, err error) {
	err = f.with(Switch, func(h *netlink.Handle) error {
		link, err := h.LinkByName(name)
		var missing netlink.LinkNotFoundError
		switch {
		case errors.As(err, &missing):
			port = NoPort
		case err != nil:
			return fmt.Errorf("find the link of %s: %w", name, err)
		case link.Attrs().RawFlags&1 != 0: // IFF_UP
			port = PortUp
		default:
			port = PortDown
		}
		return nil
	})
	return port, err
}
