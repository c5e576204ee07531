package cni

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"net"
	"strings"

	"github.com/vishvananda/netlink"
)

// linkPrefix starts the name of every host side link.
const linkPrefix = "fw"

// aliasPrefix starts the alias of every host side link; the network's name
// follows, then the pod: `ip link` shows "alias fairway fairway default/web-0".
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

// hostLink is the name of the link in the node's namespace. It can be computed
// again by DEL, CHECK and GC, so nothing has to be remembered; 14 characters
// fit IFNAMSIZ.
func (a attachment) hostLink() string {
	sum := a.hash()
	return linkPrefix + hex.EncodeToString(sum[:6])
}

// macs are the link addresses of the host's and the pod's side: unicast and
// locally administered (the second lowest bit of the first byte set, the lowest
// clear), and constant for the attachment.
func (a attachment) macs() (host, pod net.HardwareAddr) {
	sum := a.hash()
	host = append(net.HardwareAddr{0x02}, sum[6:11]...)
	pod = append(net.HardwareAddr{0x02}, sum[11:16]...)
	return host, pod
}

// alias tells administrators and GC to which pod the link belongs.
func (a attachment) alias(pod string) string {
	if pod == "" {
		pod = a.containerID
	}
	alias := aliasPrefix + a.network + " " + pod
	return alias[:min(len(alias), maxAlias)]
}

// group is the link group of a network's host side links. Unlike the alias, it is set in the
// step that makes the link: GC knows by it the links whose ADD was killed before the alias
// was set.
func group(network string) uint32 {
	sum := sha256.Sum256([]byte(network))
	return binary.BigEndian.Uint32(sum[:]) | 1 // 0 is every link's default
}

// ofNetwork says whether a link was made by this plugin for the network. Links of other
// networks and other programs are never touched.
func ofNetwork(link *netlink.LinkAttrs, network string) bool {
	if !strings.HasPrefix(link.Name, linkPrefix) && !strings.HasPrefix(link.Name, shaperStart) {
		return false
	}
	return strings.HasPrefix(link.Alias, aliasPrefix+network+" ") || link.Alias == "" && link.Group == group(network)
}

// IsPodLink says whether a link of the node, by its name and alias, is the host
// side of a pod of any network of ours.
func IsPodLink(name, alias string) bool {
	return strings.HasPrefix(name, linkPrefix) && strings.HasPrefix(alias, aliasPrefix)
}
