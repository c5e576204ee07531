package cluster

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/fairway-net/fairway/internal/datapath"
)

// The addresses at which a proxy serves its metrics and mode: the usual one, and that of a kube-proxy next to an agent.
const (
	usualAddress = "127.0.0.1:10249"
	otherAddress = "127.0.0.1:10349"
)

// kubeProxyAddress returns the address of the lab's kube-proxy.
func (o Options) kubeProxyAddress() string {
	if o.Like != "" {
		return usualAddress
	}
	return otherAddress
}

// proxyAddresses are the addresses at which the proxies of a node report their mode.
var proxyAddresses = []string{usualAddress, otherAddress}

// proxies asks the proxies of a node for their mode. It leaves out proxies that do not answer or do not carry Services.
func (l Lab) proxies(node string) []ProxyReport {
	var found []ProxyReport
	for _, address := range proxyAddresses {
		mode, err := l.proxyMode(node, address)
		if err != nil || mode == datapath.None {
			continue
		}
		name := "fairway"
		if _, err := l.askProxy(node, address, "/configz"); err == nil { // an agent has no such page
			name = "kube-proxy"
		}
		found = append(found, ProxyReport{name, mode})
	}
	return found
}

// hasProxy reports whether an agent or a proxy answers on the node, in any mode.
func (l Lab) hasProxy(node string) bool {
	return slices.ContainsFunc(proxyAddresses, func(address string) bool {
		_, err := l.proxyMode(node, address)
		return err == nil
	})
}

// proxyMode asks a proxy on the node's loopback for its mode.
func (l Lab) proxyMode(node, address string) (mode string, err error) {
	mode, err = l.askProxy(node, address, "/proxyMode")
	if err != nil {
		return "", fmt.Errorf("ask the proxy of %s for its mode: %w", node, err)
	}
	return mode, nil
}

// askProxy reads the first bytes of a page of a proxy. The connection must start on this goroutine, because only this
// thread is in the node's network namespace.
func (l Lab) askProxy(node, address, page string) (text string, err error) {
	err = l.fabric().Do(node, func() error {
		conn, err := net.DialTimeout("tcp", address, time.Second)
		if err != nil {
			return err
		}
		defer conn.Close()
		if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
			return err
		}
		request, err := http.NewRequest(http.MethodGet, "http://"+address+page, nil)
		if err != nil {
			return err
		}
		request.Close = true
		if err := request.Write(conn); err != nil {
			return err
		}
		answer, err := http.ReadResponse(bufio.NewReader(conn), request)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			return fmt.Errorf("%s answers %s", page, answer.Status)
		}
		body, err := io.ReadAll(io.LimitReader(answer.Body, 64))
		text = strings.TrimSpace(string(body))
		return err
	})
	return text, err
}

// proxyColumn formats the proxies of a node for the table of status.
func proxyColumn(found []ProxyReport) string {
	var words []string
	for _, p := range found {
		words = append(words, p.Name+" "+p.Mode)
	}
	if len(words) == 0 {
		return "-"
	}
	return strings.Join(words, ", ")
}

// runs reports whether a proxy runs in the mode. If no proxy answers, the mode that Up was given counts.
func (s *State) runs(found []ProxyReport, mode string) bool {
	if len(found) == 0 || mode == datapath.Auto {
		return mode == s.Options.ProxyMode
	}
	return slices.ContainsFunc(found, func(p ProxyReport) bool { return p.Mode == mode })
}

// proxyText describes the lab's proxies for a line about the lab. told is the mode that Up was given.
func proxyText(found []ProxyReport, told string) string {
	if len(found) == 0 {
		return told + " (no proxy answers)"
	}
	return proxyColumn(found)
}
