package cni

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"net"
	"strings"

	"github.com/vishvananda/netlink"
)

// linkPrefix is the prefix of every host side link's name.
const linkPrefix = "fw"

// aliasPrefix is the prefix of every host side link's alias. The network's name follows, then the pod: `ip link` shows
// "alias fairway fairway default/web-0".
const aliasPrefix = "fairway "

// maxAlias is IFALIASZ without its terminating zero.
const maxAlias = 255

// An attachment is one interface of one container in one network, the unit that
// the CNI specification adds and deletes.
type attachment struct {
	network     string
	containerID string
	ifName      string
}

func (a attachment) hash() [sha256.Size]byte {
	return sha256.Sum256([]byte(a.network + "\x00" + a.containerID + "\x00" + a.ifName))
}

// hostLink returns the name of the link in the node's namespace. DEL, CHECK and GC compute the name again, so no record
// of it is needed. 14 characters fit IFNAMSIZ.
func (a attachment) hostLink() string {
	sum := a.hash()
	return linkPrefix + hex.EncodeToString(sum[:6])
}

// macs returns the MAC addresses of the host side and the pod side. They are unicast and locally administered (in the
// first byte the second lowest bit is set, the lowest is clear), and constant for the attachment.
func (a attachment) macs() (host, pod net.HardwareAddr) {
	sum := a.hash()
	host = append(net.HardwareAddr{0x02}, sum[6:11]...)
	pod = append(net.HardwareAddr{0x02}, sum[11:16]...)
	return host, pod
}

// alias tells administrators and GC the pod of a link.
func (a attachment) alias(pod string) string {
	if pod == "" {
		pod = a.containerID
	}
	alias := aliasPrefix + a.network + " " + pod
	return alias[:min(len(alias), maxAlias)]
}

// group returns the link group of a network's host side links. The step that makes a link sets its group, but not its
// alias. By the group GC finds a link whose ADD was killed before it set the alias.
func group(network string) uint32 {
	sum := sha256.Sum256([]byte(network))
	return binary.BigEndian.Uint32(sum[:]) | 1 // 0 is every link's default
}

// ofNetwork reports whether this plugin made a link for the network. Links of other networks and programs are never
// touched.
func ofNetwork(link *netlink.LinkAttrs, network string) bool {
	if !strings.HasPrefix(link.Name, linkPrefix) && !strings.HasPrefix(link.Name, shaperStart) {
		return false
	}
	return strings.HasPrefix(link.Alias, aliasPrefix+network+" ") || link.Alias == "" && link.Group == group(network)
}

// IsPodLink reports whether a link of the node, by its name and alias, is the host side of a pod of any Fairway
// network.
func IsPodLink(name, alias string) bool {
	return strings.HasPrefix(name, linkPrefix) && strings.HasPrefix(alias, aliasPrefix)
}
