package cluster

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/fairway-net/fairway/lab/controlplane"
	"github.com/fairway-net/fairway/lab/fabric"
)

// parsePublish reads HOSTPORT:NODEPORT.
func parsePublish(text string) (host, node int, err error) {
	a, b, ok := strings.Cut(text, ":")
	host, errHost := strconv.Atoi(a)
	node, errNode := strconv.Atoi(b)
	if !ok || errHost != nil || errNode != nil || host < 1 || host > 65535 || node < 1 || node > 65535 {
		return 0, 0, fmt.Errorf("--publish %q is not HOSTPORT:NODEPORT [give two ports, as 8080:30080]", text)
	}
	return host, node, nil
}

func (o Options) checkPublish() error {
	taken := map[int]bool{o.APIPort: true}
	for _, text := range o.Publish {
		host, _, err := parsePublish(text)
		if err != nil {
			return err
		}
		if taken[host] {
			return fmt.Errorf("--publish %s: port %d is named twice, or is the API server's [choose another port]", text, host)
		}
		taken[host] = true
	}
	return nil
}

// listeners are the lab's ports on this machine's 127.0.0.1: the API server's, then those of Options.Publish in order.
type listeners struct {
	api       *net.TCPListener
	published []*net.TCPListener
}

func (o Options) listen() (*listeners, error) {
	api, err := listen(o.APIPort, "--api-port")
	if err != nil {
		return nil, err
	}
	l := &listeners{api: api}
	for _, text := range o.Publish {
		host, _, err := parsePublish(text)
		if err != nil {
			return nil, errors.Join(err, l.Close())
		}
		one, err := listen(host, "--publish")
		if err != nil {
			return nil, errors.Join(err, l.Close())
		}
		l.published = append(l.published, one)
	}
	return l, nil
}

func listen(port int, flag string) (*net.TCPListener, error) {
	listener, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("port %d of 127.0.0.1 is in use [choose another with %s]", port, flag)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: listen: %w", flag, err)
	}
	return listener, nil
}

// Close closes all listeners. A process that has inherited them keeps its own copies.
func (l *listeners) Close() error {
	var errs []error
	for _, one := range append(l.published, l.api) {
		if one != nil {
			errs = append(errs, one.Close())
		}
	}
	return errors.Join(errs...)
}

// files returns the listeners as files that a process can inherit.
func (l *listeners) files() (files []*os.File, err error) {
	for _, one := range append([]*net.TCPListener{l.api}, l.published...) {
		f, err := one.File()
		if err != nil {
			closeAll(files)
			return nil, fmt.Errorf("pass a listener to the control plane: %w", err)
		}
		files = append(files, f)
	}
	return files, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// published returns the addresses of the nodes that each published port leads to.
func (b *builder) published() ([]controlplane.Published, error) {
	var all []controlplane.Published
	for _, text := range b.Publish {
		_, node, err := parsePublish(text)
		if err != nil {
			return nil, err
		}
		var p controlplane.Published
		for n := 1; n <= b.Nodes; n++ {
			p.Targets = append(p.Targets, net.JoinHostPort(fabric.Addrs(b.plan.Node(n))[0].String(), strconv.Itoa(node)))
		}
		all = append(all, p)
	}
	return all, nil
}
