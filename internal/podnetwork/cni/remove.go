package cni

import (
	"errors"
	"fmt"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// removeLinks removes the links of an attachment; it is no error if there are none.
func (a attachment) removeLinks(host netlinksafe.Handle) error {
	if err := a.removeTogether(host); err != nil {
		return err
	}
	if err := removeLink(host, a.hostLink()); err != nil {
		return err
	}
	return removeLink(host, a.shaper())
}

// removeTogether removes the wire and its shaper in one step, if both exist. To remove a link the kernel waits several
// times for all CPUs, tens of milliseconds, but only once for all links of a group. If other links have the group too,
// they stay, and the two links are removed one by one.
func (a attachment) removeTogether(host netlinksafe.Handle) error {
	shaper, err := host.LinkByName(a.shaper())
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil
	}
	var links []netlink.Link
	if err == nil {
		links, err = host.LinkList()
	}
	if err != nil {
		return fmt.Errorf("look for link %s: %w", a.shaper(), err)
	}
	alone := group(a.shaper())>>1 | 1
	var veth netlink.Link
	for _, link := range links {
		switch attrs := link.Attrs(); {
		case attrs.Name == a.hostLink():
			veth = link
		case attrs.Index != shaper.Attrs().Index && attrs.Group == alone:
			return nil
		}
	}
	if veth == nil {
		return nil
	}
	for _, link := range []netlink.Link{veth, shaper} {
		if err := host.LinkSetGroup(link, int(alone)); err != nil {
			return fmt.Errorf("set the group of %s: %w", link.Attrs().Name, err)
		}
	}
	req := nl.NewNetlinkRequest(unix.RTM_DELLINK, unix.NLM_F_ACK)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(unix.IFLA_GROUP, nl.Uint32Attr(alone)))
	if _, err := req.Execute(unix.NETLINK_ROUTE, 0); err != nil {
		return fmt.Errorf("delete links %s and %s: %w", a.hostLink(), a.shaper(), err)
	}
	return nil
}

// removeLink deletes a link by name. It is no error if there is none. The other end of the pair goes too, and so do the
// addresses, routes and neighbours of both.
func removeLink(h netlinksafe.Handle, name string) error {
	link, err := h.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil
	}
	if err == nil {
		err = h.LinkDel(link)
	}
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete link %s: %w", name, err)
	}
	return nil
}
