// Package msgpack reads and writes the few kinds of msgpack values that configurations hold.
package msgpack

import (
	"encoding/binary"
	"fmt"
	"math"
	"sort"
)

// Decode reads one value: nil, bool, int64, float64, string, []interface{} or map[string]interface{}.
func Decode(data []byte) (interface{}, error) {
	d := decoder{data: data}
	value, err := d.value()
	if err == nil && d.at != len(data) {
		err = fmt.Errorf("%d bytes after the value", len(data)-d.at)
	}
	return value, err
}

type decoder struct {
	data []byte
	at   int
}

func (d *decoder) take(count int) ([]byte, error) {
	if count < 0 || d.at+count > len(d.data) {
		return nil, fmt.Errorf("msgpack ends in the middle of a value")
	}
	part := d.data[d.at : d.at+count]
	d.at += count
	return part, nil
}

func (d *decoder) number(bytes int) (uint64, error) {
	part, err := d.take(bytes)
	if err != nil {
		return 0, err
	}
	var padded [8]byte
	copy(padded[8-bytes:], part)
	return binary.BigEndian.Uint64(padded[:]), nil
}

func (d *decoder) value() (interface{}, error) {
	head, err := d.take(1)
	if err != nil {
		return nil, err
	}
	kind := head[0]
	switch {
	case kind < 0x80:
		return int64(kind), nil
	case kind < 0x90:
		return d.object(int(kind & 0x0f))
	case kind < 0xa0:
		return d.list(int(kind & 0x0f))
	case kind < 0xc0:
		return d.text(int(kind & 0x1f))
	case kind >= 0xe0:
		return int64(int8(kind)), nil
	}
	switch kind {
	case 0xc0:
		return nil, nil
	case 0xc2, 0xc3:
		return kind == 0xc3, nil
	case 0xcb:
		bits, err := d.number(8)
		return math.Float64frombits(bits), err
	case 0xcc, 0xcd, 0xce, 0xcf:
		number, err := d.number(1 << (kind - 0xcc))
		return int64(number), err
	case 0xd0:
		number, err := d.number(1)
		return int64(int8(number)), err
	case 0xd1:
		number, err := d.number(2)
		return int64(int16(number)), err
	case 0xd2:
		number, err := d.number(4)
		return int64(int32(number)), err
	case 0xd3:
		number, err := d.number(8)
		return int64(number), err
	case 0xd9, 0xda, 0xdb:
		length, err := d.number(1 << (kind - 0xd9))
		if err != nil {
			return nil, err
		}
		return d.text(int(length))
	case 0xdc, 0xdd:
		length, err := d.number(2 << (kind - 0xdc))
		if err != nil {
			return nil, err
		}
		return d.list(int(length))
	case 0xde, 0xdf:
		length, err := d.number(2 << (kind - 0xde))
		if err != nil {
			return nil, err
		}
		return d.object(int(length))
	}
	return nil, fmt.Errorf("msgpack kind %#x is not expected in a configuration", kind)
}

func (d *decoder) text(length int) (interface{}, error) {
	part, err := d.take(length)
	return string(part), err
}

func (d *decoder) list(length int) (interface{}, error) {
	items := []interface{}{}
	for i := 0; i < length; i++ {
		item, err := d.value()
		if err != nil {
			return nil, err
		}
		items = append(items, item)
	}
	return items, nil
}

func (d *decoder) object(length int) (interface{}, error) {
	entries := map[string]interface{}{}
	for i := 0; i < length; i++ {
		name, err := d.value()
		if err != nil {
			return nil, err
		}
		key, ok := name.(string)
		if !ok {
			return nil, fmt.Errorf("msgpack key %v is not a text", name)
		}
		if entries[key], err = d.value(); err != nil {
			return nil, err
		}
	}
	return entries, nil
}

// Encode writes what Decode reads; lists may also be []string.
func Encode(value interface{}) []byte {
	switch value := value.(type) {
	case nil:
		return []byte{0xc0}
	case bool:
		if value {
			return []byte{0xc3}
		}
		return []byte{0xc2}
	case int:
		return append([]byte{0xd3}, big(uint64(value), 8)...)
	case float64:
		return append([]byte{0xcb}, big(math.Float64bits(value), 8)...)
	case string:
		return append(append([]byte{0xdb}, big(uint64(len(value)), 4)...), value...)
	case []string:
		items := make([]interface{}, len(value))
		for i := range value {
			items[i] = value[i]
		}
		return Encode(items)
	case []interface{}:
		out := append([]byte{0xdd}, big(uint64(len(value)), 4)...)
		for _, item := range value {
			out = append(out, Encode(item)...)
		}
		return out
	case map[string]interface{}:
		out := append([]byte{0xdf}, big(uint64(len(value)), 4)...)
		names := make([]string, 0, len(value))
		for name := range value {
			names = append(names, name)
		}
		sort.Strings(names)
		for _, name := range names {
			out = append(append(out, Encode(name)...), Encode(value[name])...)
		}
		return out
	}
	panic(fmt.Sprintf("no msgpack for %T", value))
}

func big(number uint64, bytes int) []byte {
	var padded [8]byte
	binary.BigEndian.PutUint64(padded[:], number)
	return padded[8-bytes:]
}
